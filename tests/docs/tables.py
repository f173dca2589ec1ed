"""Tables of the docs out of the fields of documents; tests hold the pages to them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from paceline.cli.option import Option
from paceline.core.document_help import default_of, values_of
from paceline.core.field_types import fields_of
from tests.docs.blocks import ROOT


def field_table(model: type[Any], *, values: bool = False, without: Collection[str] = ()) -> str:
    """Return a table of the fields: name, meaning, with `values` their values, and default."""
    columns = ["field", "meaning", *(["values"] if values else []), "default"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, field in fields_of(model).items():
        if name not in without:
            cells = [f"`{name}`", field.description or "", *([values_of(field)] if values else [])]
            lines.append(_line([*cells, _code(field)]))
    return "\n".join(lines)


def json_field_table(model: type[BaseModel]) -> str:
    """Return a table of the fields of a JSON document: key, default as JSON, and meaning."""
    rows = ["| field | default | |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "required"
        if not field.is_required():
            default = "" if field.default in (None, "") else f"`{json.dumps(field.default)}`"
        description = " ".join((field.description or "").split())
        rows.append(f"| `{field.alias or name}` | {default} | {description} |")
    return "\n".join(rows)


def kind_table(models: Collection[type[Any]], base: type[Any]) -> str:
    """Return a table of kinds: what each reads, and its fields beside those of `base`."""
    lines = ["| kind | what it reads | fields |", "|---|---|---|"]
    for model in models:
        kind = values_of(fields_of(model)["kind"])
        own = {n: f for n, f in fields_of(model).items() if n not in (*fields_of(base), "kind")}
        fields = "<br>".join(f"`{name}`: {_told(field)}" for name, field in own.items())
        lines.append(_line([f"`{kind}`", " ".join((model.__doc__ or "").split()), fields]))
    return "\n".join(lines)


def option_row(option: Option) -> str:
    """Return the row of an option of a command: its flag, its choices and what it means."""
    choices = ", ".join(f"`{choice}`" for choice in option.choices or ())
    return f"| `{option.flags[-1]}` | {choices + ': ' if choices else ''}{option.help} |"


def check_page(name: str, *tables: str) -> None:
    """Raise AssertionError for a table that the page docs/NAME does not have."""
    page = (ROOT / "docs" / name).read_text("utf-8")
    missing = [line for table in tables for line in table.splitlines() if line not in page]
    assert not missing, "\n".join(missing)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _told(field: FieldInfo) -> str:
    default = _code(field)
    return f"{field.description} ({default})" if default else str(field.description)


def _code(field: FieldInfo) -> str:
    """Return the default, as code where it is a text in YAML."""
    default = default_of(field)
    plain = not isinstance(field.get_default(call_default_factory=True), str)
    return f"`{default}`" if default and not plain else default
