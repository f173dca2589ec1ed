"""Command-line options out of a document's fields: their types, defaults and help texts."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from pydantic.fields import FieldInfo

from paceline.core.document_help import default_of, values_of
from paceline.core.field_types import fields_of

SHORT = 60  # characters of a list of values that a help text shows


def add_field_option(
    parser: argparse._ActionsContainer, model: type[Any], name: str, **changes: Any
) -> None:
    """Add `--NAME` for a field of `model`; `changes` replace what the field says."""
    field = fields_of(model)[name]
    option = "--" + name.replace("_", "-")
    keywords: dict[str, Any] = {"help": help_of(field)}
    if field.annotation is bool:
        keywords["action"] = "store_true"
    else:
        keywords |= {"type": _type_of(field), "required": field.is_required()}
        keywords["default"] = None if field.is_required() else field.get_default()
    parser.add_argument(option, **keywords | changes)


def help_of(field: FieldInfo) -> str:
    """The description of a field with the values that it takes and its default."""
    values, default = values_of(field), default_of(field)
    notes = [values] if 0 < len(values) <= SHORT and field.annotation is not bool else []
    notes += [f"default: {default}"] if default and field.annotation is not bool else []
    description = field.description or ""
    return f"{description} ({'; '.join(notes)})" if notes else description


def _type_of(field: FieldInfo) -> type:
    """The type that argparse reads a field's text as; null is what a missing option stands for."""
    kinds = [field.annotation, *get_args(field.annotation)]
    for kind in (int, float):
        if kind in kinds or any(kind in get_args(part) for part in kinds):
            return kind
    return str
