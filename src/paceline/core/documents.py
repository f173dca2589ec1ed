"""Documents: what users write, as typed models. Every document refuses bad input in one wording.

A room declares its documents as subclasses of `Document`, close to the code that uses them. Their
JSON schemas, help texts and tables in the docs come from the fields and their descriptions.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial, wraps
from pathlib import Path as FilePath
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    overload,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic import dataclasses as pydantic_dataclasses
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import ArgsKwargs, CoreSchema, PydanticCustomError, core_schema

from paceline.core.errors import Amount, InvalidRequest

LONGEST_NAME = 64  # characters of a field's name that an error quotes
MOST_LISTED = 20  # names of fields in an error
# kinds of pydantic's errors that refusal() words in its own way
UNSUPPORTED = "unsupported"
_TOO_MANY = "too_many_items"
_UNKNOWN_FIELD = "unknown_field"
_OUT_OF_RANGE = "out_of_range"
_NO_OBJECT = ("model_type", "dict_type", "model_attributes_type")
_UNKNOWN_KIND = ("union_tag_invalid", "union_tag_not_found")
_EXTRA = ("extra_forbidden", "unexpected_keyword_argument")
ENDLESS = 2**31 - 1  # a bound of a whole number that errors do not mention
Path = tuple[str | int, ...]
T = TypeVar("T")


class UnknownField(InvalidRequest):
    """A document holds a field that its model does not have."""

    def __init__(
        self, field: str, value: object, guess: str | None, names: Sequence[str] = ()
    ) -> None:
        expected = f"one of {', '.join(names)}" if names else "no such field"
        hint = f"; expected {expected}" if names else ""
        hint = f"; did you mean {guess}?" if guess else hint
        super().__init__(field, value, expected, f"{field}: unknown field{hint}")


class MissingField(InvalidRequest):
    """A document lacks a field that has no default."""

    def __init__(self, field: str) -> None:
        super().__init__(field, None, "a value", f"{field}: missing; it is required")


class Document(BaseModel):
    """Base of objects that users write. It takes no other fields, and converts no types."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def read(cls, value: object, where: str = "", context: object = None) -> Self:
        """Read a document from plain JSON or YAML values; `where` is its place in a larger one,
        and validators get `context`.

        Raises InvalidRequest, which names the field with its place.
        """
        try:
            return cls.model_validate(value, context=context)
        except ValidationError as error:
            raise refusal(error, value, cls, where) from None

    @classmethod
    def from_file(cls, path: str | FilePath, where: str) -> Self:
        """Read a document from a JSON file; errors name it `where`."""
        return cls.read(read_json_object(path, where), where)

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, value: object) -> object:
        """Raise one error for an object with more fields than there are; pydantic would make one
        for each of them."""
        closed = cls.model_config.get("extra") == "forbid"
        if closed and isinstance(value, dict) and len(value) > len(cls.model_fields):
            names = field_names(cls)
            name = next(key for key in value if key not in names)
            raise PydanticCustomError(_UNKNOWN_FIELD, "unknown field", {"name": name})
        return value


@overload
@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(Field, dataclass_field)
)
def checked(cls: type[T]) -> type[T]: ...


@overload
@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(Field, dataclass_field)
)
def checked(*, where: str) -> Callable[[type[T]], type[T]]: ...


def checked(cls: type[T] | None = None, *, where: str = "") -> Any:
    """Make a frozen, keyword-only dataclass whose fields are checked as those of a Document.

    Constructing one raises InvalidRequest. `__post_init__` may raise it too, for fields that
    contradict each other. `where` is the place that errors put before the names of fields.
    """
    return partial(_checked, where=where) if cls is None else _checked(cls, where=where)


def _checked(cls: type[T], where: str) -> type[T]:
    config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)
    made: Any = pydantic_dataclasses.dataclass(
        frozen=True, slots=True, kw_only=True, config=config
    )(cls)
    validate = made.__pydantic_validator__.validate_python

    @wraps(made.__init__)
    def init(self: Any, **values: Any) -> None:
        try:
            validate(ArgsKwargs((), values), self_instance=self)
        except ValidationError as error:
            raise refusal(error, values, made, where) from None

    made.__init__ = init
    result: type[T] = made
    return result


def fields_of(model: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a Document or of a checked() dataclass, by name."""
    fields: dict[str, FieldInfo] = model.__pydantic_fields__
    return fields


def field_names(model: type[Any]) -> set[str]:
    """Return the keys that an object of `model` may have."""
    return {field.alias or name for name, field in fields_of(model).items()}


def read_json_object(path: str | FilePath, field: str) -> dict[str, Any]:
    """Read a JSON file that holds one object. Raises InvalidRequest for `field`."""
    try:
        value = json.loads(FilePath(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(field, str(path), f"a readable JSON file ({error})") from error
    if not isinstance(value, dict):
        raise InvalidRequest(field, str(path), "a file with one JSON object")
    return value


# -- types of fields -------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtMost:
    """Annotates a list or dict: at most `most` items, which an error calls `items`.

    The number is checked before any item is, and the check of a list ends at the first wrong item.
    """

    most: int
    items: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        bounds: dict[str, Any] = {"max_length": self.most}
        if schema["type"] == "list":
            bounds["fail_fast"] = True
        inner = {**schema, **bounds} if schema["type"] in ("list", "dict") else schema
        return core_schema.no_info_before_validator_function(self._check, inner)

    @property
    def expected(self) -> str:
        return f"up to {self.most} {self.items}"

    def _check(self, value: object) -> object:
        if isinstance(value, list | dict) and len(value) > self.most:
            raise PydanticCustomError(_TOO_MANY, self.expected, {"count": len(value)})
        return value


@dataclass(frozen=True)
class Between:
    """Annotates a number: it lies from `low` to `high`, or above `low` where that is `open`.

    Errors give both bounds, unless `words` say what is expected.
    """

    low: float
    high: float = math.inf
    open: bool = False
    words: str = ""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        whole = self._numbers(schema) == "int"
        bounds: dict[str, Any] = {"gt" if self.open else "ge": self.low}
        if self.high != math.inf:
            bounds["le"] = self.high
        make = core_schema.int_schema if whole else core_schema.float_schema
        ranged = core_schema.custom_error_schema(
            make(**bounds), _OUT_OF_RANGE, custom_error_message=self.expected(whole=whole)
        )
        return core_schema.chain_schema([schema, ranged])

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler(schema)
        described["exclusiveMinimum" if self.open else "minimum"] = self.low
        if self.high != math.inf:
            described["maximum"] = self.high
        return described

    def expected(self, *, whole: bool) -> str:
        """Say which numbers are right."""
        if self.words:
            return self.words
        number = "a whole number" if whole else "a number"
        return f"{number} {self.range(whole=whole)}"

    def range(self, *, whole: bool) -> str:
        """Return the bounds in words."""
        low, high = (_written_number(value) for value in (self.low, self.high))
        if self.high == math.inf or (whole and self.high >= ENDLESS):
            return f"above {low}" if self.open else f"of at least {low}"
        return f"above {low}, up to {high}" if self.open else f"from {low} to {high}"

    @classmethod
    def _numbers(cls, schema: Any) -> str:
        """Return the kind of number that `schema` gives: "int" or "float"."""
        while "schema" in schema:
            schema = schema["schema"]
        return str(schema["type"])


@dataclass(frozen=True)
class OneOf:
    """Annotates a text: it is one of `values`, which errors list."""

    values: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.custom_error_schema(
            core_schema.literal_schema(list(self.values)),
            _OUT_OF_RANGE,
            custom_error_message="one of " + ", ".join(self.values),
        )


@dataclass(frozen=True)
class Flag:
    """Annotates a field with its option on the command line: `--NAME METAVAR`.

    Without it the option is named after the field. `size` marks a number of bytes, written like
    512MiB.
    """

    name: str = ""
    metavar: str = ""
    size: bool = False


def _written_number(value: float) -> str:
    return str(int(value)) if value != math.inf and value == int(value) else f"{value:g}"


@dataclass(frozen=True)
class Expected:
    """Annotates a field: an error says `text` in place of pydantic's words. A value that fails
    `test` is an error too."""

    text: str
    test: Callable[[Any], bool] | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        if self.test is not None:
            schema = core_schema.no_info_after_validator_function(self._check, schema)
        return core_schema.custom_error_schema(
            schema,
            custom_error_type="expected",
            custom_error_message="{text}",  # braces in a message are places of its context
            custom_error_context={"text": self.text},
        )

    def _check(self, value: object) -> object:
        if self.test is not None and not self.test(value):
            raise ValueError(self.text)
        return value


NonEmpty = Annotated[str, Expected("text, not empty", lambda text: bool(text.strip()))]


def as_tuple(value: object) -> object:
    """Turn a list into a tuple: JSON and YAML have lists only."""
    return tuple(value) if isinstance(value, list) else value


Several = BeforeValidator(as_tuple)  # annotates a tuple that may be given as a list


@dataclass(frozen=True)
class OneOfTypes:
    """Annotates a union: a value of no type in `types` is refused with `text`; a value of one of
    them gets the errors of its own branch."""

    types: tuple[type, ...]
    text: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def _check(self, value: object) -> object:
        if not isinstance(value, self.types) or isinstance(value, bool):
            raise ValueError(self.text)
        return value


def annotation_of(field: FieldInfo, kind: type[T]) -> T | None:
    """Return the first annotation of a field that is a `kind`, such as AtMost; None without one."""
    return next(_annotations([field.annotation, *field.metadata], kind), None)


def _annotations(parts: list[Any], kind: type[T]) -> Iterator[T]:
    for part in parts:
        if isinstance(part, kind):
            yield part
        else:
            yield from _annotations(list(get_args(part)), kind)


def whole_number(value: object) -> object:
    """Return 30.0 as 30: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole_number)]


# -- refusals --------------------------------------------------------------------------------------


def refusal(
    error: ValidationError, document: object, model: type[Any], where: str = ""
) -> InvalidRequest:
    """Say which field of `document`, which is no `model`, is wrong: its name, its value, and what
    would be right.

    A value that fits no branch of a union fails each of them; the error that lies deepest belongs
    to the branch that was meant.
    """
    errors = error.errors(include_url=False, include_input=False)
    paths = [_path(item["loc"], document, item["type"]) for item in errors]
    # A misspelt field is missing under its right name as well.
    wrong = [p for p, item in zip(paths, errors, strict=True) if len(p) == 1 and _is_extra(item)]
    first = wrong[0] if wrong and errors[0]["type"] == "missing" else paths[0]
    path = max((path for path in paths if path[:1] == first[:1]), key=len)
    here = [item for other, item in zip(paths, errors, strict=True) if other == path]
    kinds: dict[str, Any] = {item["type"]: item for item in here}
    if _UNKNOWN_FIELD in kinds:
        return unknown_field((*path, kinds[_UNKNOWN_FIELD]["ctx"]["name"]), document, model, where)
    if any(map(_is_extra, here)):
        return unknown_field(path, document, model, where)
    for kind in _UNKNOWN_KIND:
        if kind in kinds:
            return _unknown_kind(kinds[kind]["ctx"], path, document, where)
    cause = kinds["value_error"]["ctx"]["error"] if "value_error" in kinds else None
    if isinstance(cause, InvalidRequest):
        return _placed(cause, path, where)
    return _wrong_value(here, path, document, model, where)


def _is_extra(error: Any) -> bool:
    return error["type"] in _EXTRA


def _wrong_value(
    errors: Sequence[Any], path: Path, document: object, model: type[Any], where: str
) -> InvalidRequest:
    """Refuse the value at `path`, where pydantic has these errors."""
    kinds = {item["type"]: item for item in errors}
    field, value = written(path, where), _value(document, path)
    if UNSUPPORTED in kinds:
        reason = kinds[UNSUPPORTED]["msg"]
        return InvalidRequest(field, value, reason, f"{field}: {reason}")
    if "missing" in kinds:
        return MissingField(field)
    if _TOO_MANY in kinds:
        count = Amount(f"{kinds[_TOO_MANY]['ctx']['count']} items")
        return InvalidRequest(field, count, kinds[_TOO_MANY]["msg"])
    if all(kind in _NO_OBJECT for kind in kinds):
        names = ", ".join(_names_at(path, document, model))
        return InvalidRequest(field, value, f"a mapping with {names}" if names else "a mapping")
    reasons = dict.fromkeys(_reason(item["msg"]) for item in errors)
    return InvalidRequest(field, value, " or ".join(reasons))


def _placed(error: InvalidRequest, path: Path, where: str) -> InvalidRequest:
    """Give the error of a check within a document its place: the check knows the field's name."""
    place = path if path[-1:] != (error.field,) else path[:-1]
    return error.within(written(place, where) if place else where)


def unknown_field(path: Path, document: object, model: type[Any], where: str = "") -> UnknownField:
    """Refuse the field at `path`, and name the field of `model` that comes close."""
    close, name = [], str(path[-1])
    if len(name) <= LONGEST_NAME:
        names = sorted(_all_names(model) - {name})
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    guess, names = next(iter(close), None), _names_at(path[:-1], document, model)
    return UnknownField(written(path, where), _value(document, path), guess, names)


def _unknown_kind(
    context: dict[str, Any], path: Path, document: object, where: str
) -> InvalidRequest:
    """Refuse an object whose discriminator names no model of a union."""
    kinds = context.get("expected_tags", "").replace("'", "")
    path = (*path, context["discriminator"].strip("'"))
    expected = f"one of {kinds}" if kinds else "a value: the field is required"
    return InvalidRequest(written(path, where), _value(document, path), expected)


def _names_at(path: Path, document: Any, model: type[Any]) -> list[str]:
    """Return the fields of the model at `path` for an error to list: none where they are many, or
    where several models of a union fit the object there."""
    models = [model]
    for step in path:
        document = document[step]
        if isinstance(step, str):
            fields = [field for model in models for key, field in _keyed(model) if key == step]
            models = [part for field in fields for part in _models_in(field.annotation)]
    fits = [model for model in models if _is_kind(document, model)]
    names = [key for key, _ in _keyed(fits[0])] if len(fits) == 1 else []
    return names if len(names) <= MOST_LISTED else []


def _keyed(model: type[Any]) -> Iterator[tuple[str, FieldInfo]]:
    return ((field.alias or name, field) for name, field in fields_of(model).items())


def _is_kind(document: Any, model: type[Any]) -> bool:
    """Return whether an object has the fixed values that `model` has, such as `kind: jsonl`."""
    if not isinstance(document, dict):
        return True
    fixed = {k: f for k, f in _keyed(model) if get_origin(f.annotation) is Literal}
    return all(document.get(k, f.default) in get_args(f.annotation) for k, f in fixed.items())


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


def _all_names(model: type[Any]) -> set[str]:
    """Return the names of the fields of `model` and of all models within it."""
    names: set[str] = set()
    todo, seen = [model], {model}
    while todo:
        inner = todo.pop()
        names |= field_names(inner)
        for field in fields_of(inner).values():
            for part in _models_in(field.annotation):
                if part not in seen:
                    seen.add(part)
                    todo.append(part)
    return names


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _path(location: Sequence[str | int], document: Any, kind: str) -> Path:
    """Return `location` without the names of union branches, which are no keys of the document."""
    path: list[str | int] = []
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
        elif last and kind == "missing":
            path.append(step)
    return tuple(path)


def _value(document: Any, path: Path) -> Any:
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _reason(message: str) -> str:
    return message.removeprefix("Input should be ").removeprefix("Value error, ")
