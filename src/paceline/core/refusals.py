"""The one place that words refusals: the field, its value, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from paceline.core.errors import Amount, InvalidRequest, OwnWords, shown
from paceline.core.field_types import TOO_MANY, field_names, fields_of, parts_of

LONGEST_NAME = 64  # characters of a field's name that an error quotes
MOST_LISTED = 20  # names of fields in an error
# kinds of pydantic's errors that are worded here
UNSUPPORTED = "unsupported"
UNKNOWN_FIELD = "unknown_field"
_EXTRA = (UNKNOWN_FIELD, "extra_forbidden", "unexpected_keyword_argument")
_NO_OBJECT = ("model_type", "dict_type", "model_attributes_type")
_UNKNOWN_KIND = ("union_tag_invalid", "union_tag_not_found")
# what is right, by kind of pydantic's errors, with places for an error's context
_EXPECTED = {
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode"), "text"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "a list"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    "none_required": "null",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "string_pattern_mismatch": "text that matches {pattern}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
# kinds whose words are ours, or name nothing but our fields and values: no text of a user's
_OWN = (*_EXPECTED, *_NO_OBJECT, "expected", "value_error", "literal_error", "prompt")
Path = tuple[str | int, ...]


class UnknownField(InvalidRequest):
    """A document holds a field that its model does not have. `guess` is the name that was probably
    meant, `names` are those that the model has, and `passing` says which values of an unknown field
    would pass."""

    def __init__(
        self,
        field: str,
        value: object,
        guess: str | None,
        names: Sequence[str] = (),
        passing: str = "",
    ) -> None:
        self.guess = guess
        expected = f"one of {', '.join(names)}" if names else "no such field"
        hint = f"; expected {expected}" if names else ""
        if passing:
            hint = f"; got {shown(value)}, expected {passing} or no such field"
        hint = f"; did you mean {guess}?" if guess else hint
        super().__init__(field, value, expected, f"{field}: unknown field{hint}")


class MissingField(InvalidRequest):
    """A document lacks a field that has no default; `others` are those that it lacks beside it."""

    def __init__(self, field: str, others: Sequence[str] = ()) -> None:
        which = "they are" if others else "it is"
        names = ", ".join((field, *others))
        super().__init__(field, None, "a value", f"{names}: missing; {which} required")


def refusal(
    error: ValidationError, document: object, model: type, where: str = ""
) -> InvalidRequest:
    """Say which field of `document`, which is no `model`, is wrong: its name, its value, and what
    would be right.

    A value that fits no branch of a union fails each of them; the error that lies deepest belongs
    to the branch that was meant.
    """
    errors = error.errors(include_url=False, include_input=False)
    paths = [_path(item, document) for item in errors]
    # A misspelt field is missing under its right name as well.
    extra = [p for p, item in zip(paths, errors, strict=True) if item["type"] in _EXTRA]
    misspelt = [path for path in extra if len(path) == 1]
    first = misspelt[0] if misspelt and errors[0]["type"] == "missing" else paths[0]
    path = max((path for path in paths if path[:1] == first[:1]), key=len)
    if path in extra:
        return unknown_field(path, document, model, where)
    here = [item for other, item in zip(paths, errors, strict=True) if other == path]
    if here[0]["type"] == "missing":
        missing = [p for p, item in zip(paths, errors, strict=True) if item["type"] == "missing"]
        beside = [written(p, where) for p in missing if p[:-1] == path[:-1] and p != path]
        return MissingField(written(path, where), beside)
    return _wrong_value(here, path, document, model, where)


def unsupported_places(error: ValidationError, document: object) -> list[Path]:
    """Return the places in `document` of fields that its model lacks or does not support."""
    kinds = (*_EXTRA, UNSUPPORTED)
    items = error.errors(include_url=False, include_input=False)
    paths = [_path(item, document) for item in items if item["type"] in kinds]
    return [path for path in paths if path and isinstance(path[-1], str)]


def _wrong_value(
    errors: Sequence[ErrorDetails], path: Path, document: object, model: type, where: str
) -> InvalidRequest:
    kinds = {item["type"]: item for item in errors}
    field, value = written(path, where), value_at(document, path)
    for kind in _UNKNOWN_KIND:
        if kind in kinds:
            return _unknown_kind(kinds[kind]["ctx"], path, document, where)
    cause = kinds["value_error"]["ctx"]["error"] if "value_error" in kinds else None
    if isinstance(cause, InvalidRequest):  # of a check within a document: it names the field
        place = path[:-1] if path[-1:] == (cause.field,) else path
        return cause.within(written(place, where) if place else where)
    if UNSUPPORTED in kinds:
        reason = kinds[UNSUPPORTED]["msg"]
        return InvalidRequest(field, value, reason, f"{field}: {reason}")
    if "missing" in kinds:
        return MissingField(field)
    if TOO_MANY in kinds:
        count = Amount(f"{kinds[TOO_MANY]['ctx']['count']} items")
        return InvalidRequest(field, count, kinds[TOO_MANY]["msg"])
    names = ", ".join(_names_at(path, document, model))
    mapping = f"a mapping with {names}" if names else "a mapping"
    reasons = dict.fromkeys(mapping if e["type"] in _NO_OBJECT else _words(e) for e in errors)
    expected = " or ".join(reasons)
    own = all(e["type"] in _OWN for e in errors)
    return InvalidRequest(field, value, OwnWords(expected) if own else expected)


def _words(error: ErrorDetails) -> str:
    """Return what would be right, in our words where the kind of error has some."""
    words, context = _EXPECTED.get(error["type"]), error.get("ctx", {})
    if error["type"] == "too_short" and context.get("min_length") == 1:
        return "a list that is not empty"
    if error["type"] == "literal_error" and context["expected"] in ("True", "False"):
        return str(context["expected"]).lower()
    if words is not None:
        return words.format(**context)
    return error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")


def unknown_field(path: Path, document: object, model: type, where: str = "") -> UnknownField:
    """Refuse the field at `path`, and name the field of `model` that comes close."""
    close, name = [], str(path[-1])
    if len(name) <= LONGEST_NAME:
        names = sorted(_all_names(model) - {name})
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    guess, names = next(iter(close), None), _names_at(path[:-1], document, model)
    return UnknownField(written(path, where), value_at(document, path), guess, names)


def _unknown_kind(
    context: dict[str, Any], path: Path, document: object, where: str
) -> InvalidRequest:
    """Refuse an object whose discriminator names no model of a union."""
    path = (*path, context["discriminator"].strip("'"))
    if "expected_tags" not in context:
        return MissingField(written(path, where))
    expected = OwnWords(f"one of {context['expected_tags'].replace(chr(39), '')}")
    return InvalidRequest(written(path, where), value_at(document, path), expected)


def _names_at(path: Path, document: object, model: type) -> list[str]:
    """Return the fields of the model at `path` that an error lists: none where they are many."""
    models = [model]
    for step in path:
        if isinstance(step, str):
            fields = [field for model in models for key, field in _keyed(model) if key == step]
            models = [part for field in fields for part in _models_in(field)]
    fits = [model for model in models if _is_kind(value_at(document, path), model)]
    names = [key for key, _ in _keyed(fits[0])] if len(fits) == 1 else []
    return names if len(names) <= MOST_LISTED else []


def _is_kind(document: object, model: type) -> bool:
    """Return whether an object has the fixed values that `model` has, such as `kind: jsonl`."""
    if not isinstance(document, dict):
        return True
    fixed = {k: f for k, f in _keyed(model) if get_origin(f.annotation) is Literal}
    return all(document.get(k, f.default) in get_args(f.annotation) for k, f in fixed.items())


def _keyed(model: type) -> Iterator[tuple[str, FieldInfo]]:
    return ((field.alias or name, field) for name, field in fields_of(model).items())


def _all_names(model: type) -> set[str]:
    models, todo = {model}, [model]
    while todo:
        inner = {part for field in fields_of(todo.pop()).values() for part in _models_in(field)}
        todo += inner - models
        models |= inner
    return set().union(*map(field_names, models))


def _models_in(field: FieldInfo) -> list[type]:
    parts = parts_of(field.annotation)
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


def written(path: Path, where: str = "") -> str:
    """Return a field as errors name it. Unknown names are cut after LONGEST_NAME characters."""
    text = where
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if len(step) <= LONGEST_NAME else step[:LONGEST_NAME] + "..."
            text += f".{name}" if text else name
    return text or "document"


def _path(error: ErrorDetails, document: Any) -> Path:
    """Return the place of an error, without union branches: they are no keys of the document."""
    path: list[str | int] = []
    location = error["loc"]
    if error["type"] == UNKNOWN_FIELD:
        location = (*location, error["ctx"]["name"])
    for index, step in enumerate(location):
        last = index == len(location) - 1
        inside = isinstance(document, dict) and step in document
        if inside and not last and not isinstance(document[step], list | tuple | dict):
            inside = location[index + 1] not in document  # else a branch is called like a key
        if inside or (
            isinstance(document, list | tuple) and isinstance(step, int) and step < len(document)
        ):
            path.append(step)
            document = document[step]
        elif last and error["type"] == "missing":
            path.append(step)
    return tuple(path)


def value_at(document: Any, path: Path) -> object:
    """Return what lies at `path` of a document; None where there is nothing."""
    for step in path:
        try:
            document = document[step]
        except (LookupError, TypeError):
            return None
    return document
