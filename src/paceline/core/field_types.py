"""The types of documents' fields: bounds, choices and conversions, each with its own words.

They annotate fields. An error says the words of the type in place of pydantic's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

TOO_MANY = "too_many_items"  # a kind of error that `core.refusals` words in its own way
ENDLESS = 2**31 - 1  # a bound of a whole number that errors do not mention
T = TypeVar("T")


def fields_of(model: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a Document or of a checked() dataclass, by name."""
    fields: dict[str, FieldInfo] = model.__pydantic_fields__
    return fields


def field_names(model: type) -> set[str]:
    """Return the keys that an object of `model` may have."""
    return {field.alias or name for name, field in fields_of(model).items()}


def parts_of(*annotations: object) -> Iterator[object]:
    """Yield annotations, and what lies within them."""
    for annotation in annotations:
        yield annotation
        yield from parts_of(*get_args(annotation))


def annotation_of(field: FieldInfo, kind: type[T]) -> T | None:
    """Return the first annotation of a field that is a `kind`, such as AtMost; None without one."""
    parts = parts_of(field.annotation, *field.metadata)
    return next((part for part in parts if isinstance(part, kind)), None)


def _worded(schema: CoreSchema, words: str) -> CoreSchema:
    """Say `words` for every error of a schema."""
    return core_schema.custom_error_schema(
        schema,
        custom_error_type="expected",
        custom_error_message="{text}",  # braces in a message are places of its context
        custom_error_context={"text": words},
    )


class FieldType:
    """Annotates a field: puts a schema around that of the field's type."""

    def around(self, schema: CoreSchema) -> CoreSchema:
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return self.around(handler(source))


@dataclass(frozen=True)
class AtMost(FieldType):
    """Annotates a list or dict: at most `most` items, which an error calls `items`.

    The number is checked before any item is, and the check of a list ends at the first wrong item.
    """

    most: int
    items: str

    def around(self, schema: CoreSchema) -> CoreSchema:
        if schema["type"] == "list":
            schema = {**schema, "max_length": self.most, "fail_fast": True}
        elif schema["type"] == "dict":
            schema = {**schema, "max_length": self.most}
        return core_schema.no_info_before_validator_function(self._check, schema)

    @property
    def expected(self) -> str:
        return f"up to {self.most} {self.items}"

    def _check(self, value: object) -> object:
        if isinstance(value, list | dict) and len(value) > self.most:
            raise PydanticCustomError(TOO_MANY, self.expected, {"count": len(value)})
        return value


@dataclass(frozen=True)
class Between(FieldType):
    """Annotates a number: it lies from `low` to `high`, or above `low` where that is `open`.

    Errors give both bounds, unless `words` say what is expected.
    """

    low: float
    high: float = math.inf
    open: bool = False
    words: str = ""

    def around(self, schema: CoreSchema) -> CoreSchema:
        innermost: Mapping[str, Any] = schema
        while "schema" in innermost:
            innermost = innermost["schema"]
        whole = innermost["type"] == "int"
        make = core_schema.int_schema if whole else core_schema.float_schema
        bounds: dict[str, Any] = {"gt" if self.open else "ge": self.low}
        if self.high != math.inf:
            bounds["le"] = self.high
        ranged = _worded(make(**bounds), self.expected(whole=whole))
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
        number = "a whole number" if whole else "a number"
        return self.words or f"{number} {self.range(whole=whole)}"

    def range(self, *, whole: bool) -> str:
        """Return the bounds in words."""
        low, high = (
            str(int(value)) if value != math.inf and value == int(value) else f"{value:g}"
            for value in (self.low, self.high)
        )
        if self.high == math.inf or (whole and self.high >= ENDLESS):
            return f"above {low}" if self.open else f"of at least {low}"
        return f"above {low}, up to {high}" if self.open else f"from {low} to {high}"


@dataclass(frozen=True)
class OneOf(FieldType):
    """Annotates a text: it is one of `values`, which errors list."""

    values: tuple[str, ...]

    def around(self, schema: CoreSchema) -> CoreSchema:
        words = "one of " + ", ".join(self.values)
        return _worded(core_schema.literal_schema(list(self.values)), words)


@dataclass(frozen=True)
class Expected(FieldType):
    """Annotates a field: an error says `text` in place of pydantic's words. A value that fails
    `test` is an error too."""

    text: str
    test: Callable[[Any], bool] | None = None

    def around(self, schema: CoreSchema) -> CoreSchema:
        if self.test is not None:
            schema = core_schema.no_info_after_validator_function(self._check, schema)
        return _worded(schema, self.text)

    def _check(self, value: object) -> object:
        if self.test is not None and not self.test(value):
            raise ValueError(self.text)
        return value


@dataclass(frozen=True)
class OneOfTypes(FieldType):
    """Annotates a union: a value of no type in `types` is refused with `text`; a value of one of
    them gets the errors of its own branch."""

    types: tuple[type, ...]
    text: str

    def around(self, schema: CoreSchema) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, schema)

    def _check(self, value: object) -> object:
        if not isinstance(value, self.types) or isinstance(value, bool):
            raise ValueError(self.text)
        return value


@dataclass(frozen=True)
class Flag:
    """Annotates a field with its option on the command line: `--NAME METAVAR`.

    Without it the option is named after the field. `size` marks a number of bytes, written like
    512MiB.
    """

    name: str = ""
    metavar: str = ""
    size: bool = False


def as_tuple(value: object) -> object:
    """Turn a list into a tuple: JSON and YAML have lists only."""
    return tuple(value) if isinstance(value, list) else value


def whole_number(value: object) -> object:
    """Return 30.0 as 30: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


NonEmpty = Annotated[str, Expected("text, not empty", lambda text: bool(text.strip()))]
Several = BeforeValidator(as_tuple)  # annotates a tuple that may be given as a list
Whole = Annotated[int, BeforeValidator(whole_number)]
