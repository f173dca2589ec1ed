"""The documents of synth tell their schema and their page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from paceline.synth.app import App, read_app
from paceline.synth.source_spec import KINDS, SourceSpec
from tests.docs.tables import check_page, field_table, kind_table

from .test_app import ROOT
from .tiny import description

SCHEMA = App.model_json_schema()


def test_the_page_on_training_data_has_every_field() -> None:
    sources = field_table(SourceSpec, without=("name", "part"))
    check_page("training-data.md", field_table(App), sources, kind_table(KINDS, SourceSpec))


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "apps").glob("*.yaml")))
def test_the_schema_takes_the_applications_in_the_repository(name: str) -> None:
    jsonschema.validate(yaml.safe_load((ROOT / "apps" / f"{name}.yaml").read_text()), SCHEMA)


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": "red"},
        {"held_out": 0.9},
        {"sources": [{"name": "a", "kind": "sql"}]},
        {"sources": [{"name": "a", "kind": "text", "path": "x", "unit": "word"}]},
        {"size": {"rows": 0}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_reading_refuses(changes: dict[str, Any], tmp_path: Path) -> None:
    value = description(tmp_path, "m", **changes)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, SCHEMA)
    with pytest.raises(ValueError):
        read_app(value, tmp_path)


def test_one_text_stands_for_a_list_and_an_empty_field_for_its_default(tmp_path: Path) -> None:
    source = {"name": "a", "kind": "jsonl", "path": "x.jsonl", "licence": None, "samples": None}
    app = read_app(
        {"name": "t", "system": None, "sources": [source], "sampling": {"stop": "END"}}, tmp_path
    )
    (spec,) = app.sources
    assert spec.path == (str(tmp_path / "x.jsonl"),) and spec.samples == 1
    assert app.sampling.params.stop == ("END",) and app.sampling.temperature == (1.0,)
    assert app.given["sources"][0]["samples"] is None  # the manifest keeps it as it was written
