"""The values and the default of a document's field in words, for help texts and tables.

A document states them with about(), as in `context: int | None = about("longest row", None,
"the model's")`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from paceline.core.field_types import Between, annotation_of, parts_of

_IN_WORDS = "x-default"


def about(description: str, default: object = ..., in_words: str = "") -> Any:
    """Return a field with its description. A default that is a function makes one for each
    document; `in_words` says what a default such as null stands for."""
    given: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    return Field(
        **given,
        description=description,
        json_schema_extra={_IN_WORDS: in_words} if in_words else None,
    )


def values_of(field: FieldInfo) -> str:
    """Return the values that a field takes, as "1 to 8" or "adamw, muon"; "" where any fits."""
    parts = list(parts_of(field.annotation, *field.metadata))
    choices = [
        str(item) for part in parts if get_origin(part) is Literal for item in get_args(part)
    ]
    if choices:
        return ", ".join(choices)
    if bounds := annotation_of(field, Between):
        return bounds.range(whole=int in parts).removeprefix("from ").removeprefix("of ")
    return "true, false" if bool in parts else ""


def default_of(field: FieldInfo) -> str:
    """Return the default of a field in words; "" for a required field and for null."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and _IN_WORDS in extra:
        return str(extra[_IN_WORDS])
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{name}={share:g}" for name, share in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
