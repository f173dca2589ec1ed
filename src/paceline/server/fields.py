"""Types of the fields of request bodies: objects and lists with bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from paceline.core.field_types import AtMost, Whole, whole_number
from paceline.core.params import MAX_STOPS, MAX_TOKEN_ID
from paceline.core.refusals import UNSUPPORTED
from paceline.server.idle_values import is_empty

JsonObject = dict[str, Any]  # as json.loads() gives it
MAX_PROMPTS = 128
MAX_TABLE = 65536  # entries of logit_bias and of stop_token_ids


class TextBearing(Protocol):
    """A part of a content that has a text."""

    @property
    def text(self) -> str: ...


def joined_text(content: str | Sequence[TextBearing] | None) -> str:
    """Return the text of a content: that of its parts, one a line."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content or ())


def _are_ids(value: object) -> bool:
    """Return whether `value` is a list of token ids; the check runs at C speed."""
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
    """Raise one error for the first wrong bias; pydantic would make one for each of them."""
    if isinstance(value, dict) and not set(map(type, value.values())) <= {int, float}:
        wrong = next(key for key, bias in value.items() if type(bias) not in (int, float))
        return one_by_one({wrong: value[wrong]})
    return one_by_one(value)


def _text_or_ids(value: object) -> Any:
    """Read a prompt: text, token ids, or a list of either."""
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
        return list(map(whole_number, value))
    return value


TokenId = Annotated[Whole, Field(ge=0, lt=MAX_TOKEN_ID + 1)]
Stops = Annotated[list[str], AtMost(MAX_STOPS, "non-empty strings")]
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
MAX_IDS = 2**19  # of one list; a body has no more values
TokenIds = Annotated[
    list[TokenId],
    Field(max_length=MAX_IDS, fail_fast=True),
    WrapValidator(_ids),
    AtMost(MAX_IDS, "token ids"),
]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
_IdLists = Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
Prompt = Annotated[
    str | list[str] | list[int] | list[list[int]],
    PlainValidator(_text_or_ids, json_schema_input_type=str | _Texts | _Ids | _IdLists),
]


def _refuse(value: object) -> object:
    if value == []:
        return value
    if is_empty(value):
        return None
    raise PydanticCustomError(UNSUPPORTED, "this server does not support it; leave it out")


def _refuse_any(value: object) -> object:
    if value is None:
        return value
    raise PydanticCustomError(UNSUPPORTED, "this server does not support it; leave it out")


Unsupported = Annotated[None, BeforeValidator(_refuse)]
Absent = Annotated[None, BeforeValidator(_refuse_any)]  # an empty object asks for something too
NoList = Annotated[
    list[object] | None, Field(max_length=0, description="Not supported."), BeforeValidator(_refuse)
]


ModelName = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
