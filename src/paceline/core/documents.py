"""Documents: what users write, as typed models. Every document refuses bad input in one wording.

A room declares its documents as subclasses of `Document`, close to the code that uses them. Their
JSON schemas, help texts and tables in the docs come from the fields and their descriptions.
"""

from __future__ import annotations

import json
from dataclasses import field as dataclass_field
from functools import wraps
from pathlib import Path
from typing import Any, Self, TypeVar, cast, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic import dataclasses as pydantic_dataclasses
from pydantic_core import ArgsKwargs, PydanticCustomError

from paceline.core.errors import InvalidRequest
from paceline.core.field_types import field_names
from paceline.core.refusals import UNKNOWN_FIELD, refusal

T = TypeVar("T")


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
    def from_file(cls, path: str | Path, where: str) -> Self:
        """Read a document from a JSON file; errors name it `where`."""
        return cls.read(read_json_object(path, where), where)

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, value: object) -> object:
        """Refuse an object with more fields than there are once, not once for each of them."""
        closed = cls.model_config.get("extra") == "forbid"
        if closed and isinstance(value, dict) and len(value) > len(cls.model_fields):
            names = field_names(cls)
            name = next(key for key in value if key not in names)
            raise PydanticCustomError(UNKNOWN_FIELD, "unknown field", {"name": name})
        return value


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(Field, dataclass_field)
)
def checked(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass whose fields are checked as those of a Document.

    Constructing one raises InvalidRequest. `__post_init__` may raise it too, for fields that
    contradict each other. A class may state `WHERE`, which errors put before the names of fields.
    """
    config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)
    dataclass = pydantic_dataclasses.dataclass(frozen=True, slots=True, kw_only=True, config=config)
    made = dataclass(cls)
    validate = made.__pydantic_validator__.validate_python

    @wraps(made.__init__)
    def init(self: T, **values: object) -> None:
        try:
            validate(ArgsKwargs((), values), self_instance=self)
        except ValidationError as error:
            raise refusal(error, values, made, getattr(made, "WHERE", "")) from None

    setattr(made, "__init__", init)  # noqa: B010 - mypy takes an assignment for a method
    return cast("type[T]", made)


def read_json_object(path: str | Path, field: str) -> dict[str, Any]:
    """Read a JSON file that holds one object. Raises InvalidRequest for `field`."""
    try:
        value = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(field, str(path), f"a readable JSON file ({error})") from error
    if not isinstance(value, dict):
        raise InvalidRequest(field, str(path), "a file with one JSON object")
    return value
