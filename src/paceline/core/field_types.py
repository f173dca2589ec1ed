"""The types of documents' fields: bounds, choices and conversions, each with its own words.

They annotate fields. An error says the words of the type in place of pydantic's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# kinds of pydantic's errors that `core.refusals` words in its own way
TOO_MANY = "too_many_items"
OUT_OF_RANGE = "out_of_range"
ENDLESS = 2**31 - 1  # a bound of a whole number that errors do not mention
T = TypeVar("T")


def fields_of(model: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a Document or of a checked() dataclass, by name."""
    fields: dict[str, FieldInfo] = model.__pydantic_fields__
    return fields


def field_names(model: type[Any]) -> set[str]:
    """Return the keys that an object of `model` may have."""
    return {field.alias or name for name, field in fields_of(model).items()}


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
            raise PydanticCustomError(TOO_MANY, self.expected, {"count": len(value)})
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
            make(**bounds), OUT_OF_RANGE, custom_error_message=self.expected(whole=whole)
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
            OUT_OF_RANGE,
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
