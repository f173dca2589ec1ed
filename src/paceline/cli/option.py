"""Make an option out of a dataclass field: its flags, its type, its help text and its default."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from paceline.cli.completion import COMPLETERS
from paceline.core import PacelineError
from paceline.core.document_help import default_of, values_of
from paceline.core.field_types import ENDLESS, Between, Flag, OneOf, annotation_of, fields_of

SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
SHORT = 60  # characters of a list of values that a help text shows
Parse = Callable[[str], object]
M = TypeVar("M")


@dataclass(frozen=True)
class Argument(Flag):
    """Annotates a field of a command that is written in another way than its type says.

    flags        in place of the one that `name` makes, such as ("-o", "--out")
    positional   an argument without a flag
    bare         the value of the flag alone, which may then stand without one
    look_up      raises PacelineError where what a value names is not there
    instead      the options that may stand in place of this one: one of all is required
    """

    flags: tuple[str, ...] = ()
    positional: bool = False
    bare: object = None
    action: type[argparse.Action] | None = None
    look_up: Callable[[str], object] | None = None
    instead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Only:
    """Annotates a group: the command has options for these of its fields."""

    names: tuple[str, ...]


class Option:
    """The option that sets a field. `default` replaces that of the field."""

    def __init__(self, name: str, field: FieldInfo, default: object = PydanticUndefined) -> None:
        self.field, self._field = name, field
        flag = annotation_of(field, Flag) or Flag()
        self.argument = flag if isinstance(flag, Argument) else Argument(**asdict(flag))
        self.flags = self.argument.flags or ("--" + (flag.name or name).replace("_", "-"),)
        if self.argument.positional:
            self.flags = (name,)
        one_of = annotation_of(field, OneOf)
        self.choices = one_of.values if one_of else None
        self.text = " ".join((field.description or "").split())
        if default is PydanticUndefined:
            default = field.get_default(call_default_factory=True)
        self.is_required = default is PydanticUndefined
        self.default = None if self.is_required else default
        self._types = _plain_types(field.annotation)

    @property
    def dest(self) -> str:
        """The attribute of parsed arguments that holds the value."""
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """The name in errors: the flag, or what stands for a positional argument."""
        return (self.argument.positional and self.argument.metavar) or self.flags[-1]

    @property
    def is_several(self) -> bool:
        """Return whether the option may be repeated."""
        return dict in self._types or (tuple in self._types and not self._types & {int, float})

    @property
    def is_switch(self) -> bool:
        """Return whether the option stands without a value."""
        return bool in self._types

    def absent(self, args: argparse.Namespace) -> Iterator[PacelineError]:
        """Yield a refusal for each value in parsed arguments that names what is not there."""
        stated = getattr(args, self.dest, None)
        if self.argument.look_up is None or stated is None:
            return
        for text in stated if isinstance(stated, list) else [stated]:
            try:
                self.argument.look_up(text)
            except PacelineError as error:
                yield error

    def missing(self, args: argparse.Namespace) -> str:
        """Return the option's name for errors where parsed arguments lack it, and else ""."""
        others = self.argument.instead
        if not (self.is_required or others):
            return ""
        if any(hasattr(args, name) for name in (self.dest, *others)):
            return ""
        *first, last = (self.shown, *(f"--{name}" for name in others))
        return f"{', '.join(first)} or {last}" if first else last

    def read(self, text: str) -> object:
        """Read a value of the option. Raises ValueError, saying what would be right."""
        parser, _ = self._parser()
        try:
            value = parser(text)
        except argparse.ArgumentTypeError as error:
            raise ValueError(str(error)) from None
        except ValueError:
            kind = "a whole number" if int in self._types else "a number"
            raise ValueError(f"got {text!r}; expected {kind}") from None
        if self.choices and value not in self.choices:
            raise ValueError(f"got {text!r}; expected one of {', '.join(self.choices)}")
        return value

    @property
    def help(self) -> str:
        """The text for `--help` and the docs: what the option means, its values and its default."""
        if bool in self._types:
            return self.text
        between, values = annotation_of(self._field, Between), values_of(self._field)
        plain = between is None or (between.high < ENDLESS and not between.words)
        notes = [values] if plain and 0 < len(values) <= SHORT else []
        if self._written_default and "(default" not in self.text:
            notes.append(f"default: {self._written_default}")
        return f"{self.text} ({'; '.join(notes)})" if notes else self.text

    @property
    def _written_default(self) -> str:
        value = self.default
        if self.argument.size and isinstance(value, int):
            return f"{value // 2**20}MiB"
        if isinstance(value, tuple):
            return ",".join(str(x) if isinstance(x, str) else f"{x:g}" for x in value)
        if isinstance(value, dict):
            return default_of(self._field)
        if value is None:
            words = default_of(self._field) if self._field.default is None else ""
            return words or ("" if self.is_required or self.argument.positional else "none")
        return f"{value:g}" if isinstance(value, float) else str(value)

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a command."""
        argument, types, several = self.argument, self._types, self.is_several
        help_text = self.help.replace("%", "%%").replace("`", "")
        # without defaults: the environment and the configuration come before those of the fields
        keywords: dict[str, Any] = {"help": help_text, "default": argparse.SUPPRESS}
        if bool in types:
            keywords["action"] = argument.action or f"store_{not self.default}".lower()
        else:
            keywords["type"], metavar = self._parser()
            keywords |= {"metavar": argument.metavar or metavar, "choices": self.choices}
            if argument.positional:
                keywords["nargs"] = "+" if several else None if self.is_required else "?"
            else:
                keywords["required"] = self.is_required
                if several:
                    keywords["action"] = "append"
                if argument.bare is not None:
                    keywords |= {"nargs": "?", "const": argument.bare}
        action = parser.add_argument(*self.flags, **keywords)
        if self.field in COMPLETERS:
            action.completer = COMPLETERS[self.field]  # type: ignore[attr-defined]

    def _parser(self) -> tuple[Parse, str | None]:
        """Return what reads the text, and how help calls a value."""
        if self.argument.size:
            return parse_bytes, None
        kind = next((kind for kind in (int, float) if kind in self._types), str)
        if dict in self._types or kind is str:
            return str, None
        if tuple in self._types:
            return partial(parse_numbers, kind=kind), "LIST"
        return kind, "N" if kind is int else None


def options_of(model: type, default: object = None) -> dict[str, Option]:
    """Return the options that set the fields of `model`, a checked() dataclass, by field; `default`
    is a model with their defaults."""
    return {
        name: Option(name, field, getattr(default, name, PydanticUndefined))
        for name, field in fields_of(model).items()
    }


def parse_bytes(text: str) -> int:
    """Read 1500000000, 1.5G (10^9) or 2GiB (2^30)."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it like 512MiB or 2GiB")
    return int(float(match[1]) * SIZES[match[2] or ""])


def parse_numbers(text: str, kind: type[M]) -> tuple[M, ...]:
    """Read 0.9,0.8,1 or, as int, 1,8,64."""
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError:
        expected = "numbers; write it like 0,1,2.5"
        if kind is int:
            expected = "whole numbers; write it like 1,8,64"
        raise argparse.ArgumentTypeError(f"{text!r} is no list of {expected}") from None


def _plain_types(annotation: object) -> set[type]:
    """Return the types in an annotation, such as tuple and str for tuple[str, ...] | None."""
    kind = get_origin(annotation) or annotation
    inner = [_plain_types(part) for part in get_args(annotation)]
    return ({kind} if isinstance(kind, type) else set()).union(*inner)
