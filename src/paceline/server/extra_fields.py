"""Fields of a request that its model does not have, at the top of the body and inside it.

They pass where they ask for nothing. Others are refused by name; a server with --lenient leaves
them out and says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from paceline.core import InvalidRequest
from paceline.core.errors import Amount, shown
from paceline.core.field_types import field_names
from paceline.core.refusals import (
    Path,
    UnknownField,
    refusal,
    unsupported_places,
    value_at,
    written,
)
from paceline.server.fields import JsonObject
from paceline.server.idle_values import IDLE_VALUES, idle_words, is_empty, is_idle, misspelt
from paceline.server.protocol import RequestBody

R = TypeVar("R", bound=RequestBody)

MOST_IGNORED = 32  # names of one kind; a body with more of them is refused
MOST_EMPTY = 64  # unknown fields with an empty value other than null; each is compared with names
IGNORED_HEADER = b"x-paceline-ignored"


def read_body(stated: JsonObject, model: type[R], *, lenient: bool = False) -> tuple[R, list[str]]:
    """Read `stated` as a `model`, without fields that the model lacks and that ask for nothing. A
    `lenient` reader leaves out all that the model lacks or does not support. Return the names of
    those that asked for something, in the order in which they were found.

    Raises InvalidRequest.
    """
    exceptions = {**IDLE_VALUES, **model.idle_values}
    extra = _not_idle(stated, model, exceptions)
    if not lenient:
        _refuse_other_values(extra, exceptions)
    ignored = [written((name,)) for name in extra] if lenient else []
    kept = field_names(model) if lenient else field_names(model) | extra.keys()
    rest = {name: value for name, value in stated.items() if name in kept}
    idle_names: list[str] = []
    while True:
        for names in (ignored, idle_names):
            if len(names) > MOST_IGNORED:
                expected = f"at most {MOST_IGNORED} fields that this server does not support"
                raise InvalidRequest(names[-1], Amount("one more"), expected)
        try:
            return model.model_validate(rest), ignored
        except ValidationError as error:
            places = unsupported_places(error, rest)
            # each round leaves out a name in all items of a list, so that the rounds are few
            if idle := [place for place in places if _is_idle_at(rest, place, exceptions)]:
                for place in idle:
                    _leave_out(rest, place, is_empty)
                idle_names += dict.fromkeys(map(_pattern, idle))
            elif lenient and places:
                for place in places:
                    _leave_out(rest, place)
                ignored += dict.fromkeys(map(_pattern, places))
            else:
                _refuse(error, rest, model)


def header_value(ignored: list[str]) -> bytes:
    """Return the names as the value of a header; what a header cannot hold is percent-encoded."""
    return ", ".join(quote(name, safe=".[]-_") for name in ignored).encode()


def _not_idle(
    stated: JsonObject, model: type[RequestBody], exceptions: Mapping[str, object]
) -> JsonObject:
    """Return the fields that `model` lacks and that ask for something."""
    names = field_names(model)
    extra = {k: v for k, v in stated.items() if k not in names and v is not None}
    empty = [name for name, value in extra.items() if is_empty(value)]
    if len(empty) > MOST_EMPTY:
        unknown = "fields that this server does not know, unless they are null"
        expected = f"at most {MOST_EMPTY} {unknown}"
        raise InvalidRequest(written((empty[-1],)), Amount("one more"), expected)
    return {
        name: value
        for name, value in extra.items()
        if not is_idle(name, value, exceptions)
        or (is_empty(value) and misspelt(name, exceptions) is not None)
    }


def _refuse_other_values(extra: JsonObject, exceptions: Mapping[str, object]) -> None:
    """Raise InvalidRequest for a field whose idle value is known, and for its misspelling."""
    for name, value in sorted(extra.items()):
        if name in exceptions:
            expected = f"{shown(exceptions[name])}: this server supports no other value"
            raise InvalidRequest(name, value, expected)
        if is_empty(value):
            raise UnknownField(written((name,)), value, misspelt(name, exceptions))


def _refuse(error: ValidationError, document: JsonObject, model: type[RequestBody]) -> NoReturn:
    """Raise the refusal of a document. One of an unknown field says which values would pass."""
    refused = refusal(error, document, model)
    if isinstance(refused, UnknownField) and refused.guess is None and refused.field in document:
        value = document[refused.field]
        refused = UnknownField(refused.field, value, None, passing=idle_words(value))
    raise refused from None


def _is_idle_at(document: JsonObject, place: Path, exceptions: Mapping[str, object]) -> bool:
    """Return whether what lies at `place` asks for nothing. Within an object that is an exception,
    such as `speculative`, only null does."""
    value = value_at(document, place)
    return value is None or (is_empty(value) and place[0] not in exceptions)


def _leave_out(
    document: object, place: Path, if_value: Callable[[object], bool] = lambda value: True
) -> None:
    """Delete what lies at `place`, in every item of the lists on the way, if its value is such."""
    step, rest = place[0], place[1:]
    if isinstance(document, list):
        if isinstance(step, int):
            for item in document:
                _leave_out(item, rest, if_value)
    elif isinstance(document, dict) and step in document:
        if rest:
            _leave_out(document[step], rest, if_value)
        elif if_value(document[step]):
            del document[step]


def _pattern(place: Path) -> str:
    """Return a place with `[]` for each item of a list."""
    steps = tuple("[]" if isinstance(step, int) else step for step in place)
    return written(steps).replace(".[]", "[]")
