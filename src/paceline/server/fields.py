"""What the fields of request bodies are made of: objects and lists with bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_PROMPTS = 128
MAX_TABLE = 65536  # entries of logit_bias and of stop_token_ids
MAX_TOKEN_ID = 2**31 - 1
# kinds of errors that server/errors.py words in its own way
TOO_MANY = "too_many_items"
UNKNOWN_FIELD = "unknown_field"


class Body(BaseModel):
    """An object that takes its own fields only."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, value: object) -> object:
        """Raises one error for an object with more fields than there are; pydantic would make one
        for each of them."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            names = field_names(cls)
            name = next(key for key in value if key not in names)
            raise PydanticCustomError(UNKNOWN_FIELD, "unknown field", {"name": name})
        return value


def field_names(model: type[BaseModel]) -> set[str]:
    """The keys that an object of `model` may have."""
    return {field.alias or name for name, field in model.model_fields.items()}


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


def bound_of(field: FieldInfo) -> AtMost | None:
    """The bound on the items of a field, None where it has none."""
    return next(_bounds([field.annotation, *field.metadata]), None)


def _bounds(parts: list[Any]) -> Iterator[AtMost]:
    for part in parts:
        if isinstance(part, AtMost):
            yield part
        else:
            yield from _bounds(list(get_args(part)))


def _whole(value: object) -> object:
    """JSON has one kind of number: to its schemas 30.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _are_ids(value: object) -> bool:
    """Whether `value` is a list of token ids; the check of a long one runs at C speed."""
    return (
        isinstance(value, list)
        and bool(value)
        and set(map(type, value)) == {int}
        and min(value) >= 0
        and max(value) <= MAX_TOKEN_ID
    )


def _ids(value: object, one_by_one: ValidatorFunctionWrapHandler) -> Any:
    return value if _are_ids(value) else one_by_one(value)


def _biases(value: object, one_by_one: ValidatorFunctionWrapHandler) -> Any:
    """Raises one error for the first wrong bias; pydantic would make one for each of them."""
    if isinstance(value, dict) and not set(map(type, value.values())) <= {int, float}:
        wrong = next(key for key, bias in value.items() if type(bias) not in (int, float))
        return one_by_one({wrong: value[wrong]})
    return one_by_one(value)


def _text_or_ids(value: object) -> Any:
    """A prompt: text, token ids, or a list of either."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if isinstance(value[0], list):
            lists = [_whole_ids(item) for item in value[: MAX_PROMPTS + 1]]
            if len(value) <= MAX_PROMPTS and all(map(_are_ids, lists)):
                return lists
        elif isinstance(value[0], str):
            if len(value) <= MAX_PROMPTS and all(isinstance(item, str) for item in value):
                return value
        elif _are_ids(ids := _whole_ids(value)):
            return ids
    expected = f"text, token ids, or a list of 1 to {MAX_PROMPTS} of either"
    raise PydanticCustomError("prompt", expected)


def _whole_ids(value: object) -> object:
    if isinstance(value, list) and float in set(map(type, value)):
        return list(map(_whole, value))
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
TokenId = Annotated[Whole, Field(ge=0, lt=MAX_TOKEN_ID + 1)]
Stops = Annotated[list[str], AtMost(16, "non-empty strings")]
Biases = Annotated[
    dict[str, float],
    Field(max_length=MAX_TABLE),
    WrapValidator(_biases),
    AtMost(MAX_TABLE, "entries"),
]
StopIds = Annotated[
    list[TokenId],
    Field(max_length=MAX_TABLE, fail_fast=True),
    WrapValidator(_ids),
    AtMost(MAX_TABLE, "token ids"),
]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
_IdLists = Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
Prompt = Annotated[
    str | list[str] | list[int] | list[list[int]],
    PlainValidator(_text_or_ids, json_schema_input_type=str | _Texts | _Ids | _IdLists),
]
