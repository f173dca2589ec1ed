"""The one-line form in which users name a drafter: `[NAME=]KIND[:VALUE][,key=value...]`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.core.errors import InvalidRequest

GRAMMAR = "[NAME=]KIND[:VALUE][,key=value...]"


@dataclass(frozen=True, slots=True)
class SpecLine:
    """The parts of one line, as text. Readers look up the kind and convert the values.

    `name` is None where the line has none. An option that may hold a list has several values, any
    other has one.
    """

    text: str
    name: str | None
    kind: str
    value: str | None
    options: dict[str, tuple[str, ...]]

    @property
    def head(self) -> str:
        """KIND[:VALUE], without the name."""
        return self.kind if self.value is None else f"{self.kind}:{self.value}"

    @classmethod
    def parse(cls, text: str, lists: Collection[str] = ()) -> SpecLine:
        """Split a drafter's line; options in `lists` may hold several values.

        Raises InvalidRequest.
        """
        head, _, options = text.partition(",")
        before, equals, after = head.partition("=")
        named = bool(equals) and not {"/", ":"} & set(before)  # else '=' belongs to a path
        kind, colon, value = (after if named else head).partition(":")
        kind, value = kind.strip(), value.strip()
        if not kind:
            raise InvalidRequest("drafter", text, GRAMMAR)
        if colon and not value:
            raise InvalidRequest("drafter", text, f"a value after {kind!r}:")
        return cls(
            text=text,
            name=before.strip() if named else None,
            kind=kind,
            value=value or None,
            options=parse_options("drafter", options, lists, GRAMMAR) if "," in text else {},
        )


def parse_options(
    field: str, text: str, lists: Collection[str] = (), grammar: str = "key=value,key=value..."
) -> dict[str, tuple[str, ...]]:
    """Split `key=value,key=value,value`; only keys in `lists` may have several values.

    Raises InvalidRequest for `field`; `grammar` is the form that it names.
    """
    options: dict[str, tuple[str, ...]] = {}
    key = ""
    for part in (part.strip() for part in text.split(",")):
        before, equals, after = (piece.strip() for piece in part.partition("="))
        if equals and before and after:
            if before in options:
                raise InvalidRequest(field, text, f"each option once; {before} is there twice")
            key, options[before] = before, (after,)
        elif not equals and part and key in lists:
            options[key] += (part,)
        else:
            raise InvalidRequest(field, text, f"{grammar}; {part!r} is no key=value")
    return options
