"""A set's manifest says what answers were bound to, and which of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import MANIFEST, Binding, read_binding, read_manifest
from paceline.synth.folder import open_set
from paceline.synth.job import SynthJob

from .fake import FakeAnswerer, by_seed
from .sets import fresh, run
from .test_ask import TOOLS
from .tiny import made

SOURCES = [
    {"name": "task", "kind": "jsonl", "path": "task.jsonl"},
    {"name": "plain", "kind": "jsonl", "path": "chat.jsonl", "system": "none"},
    {"name": "far", "kind": "jsonl", "path": "far.jsonl", "part": "neighbour", "system": "own"},
]
CHOICE = {"kind": "choice", "value": ["yes", "no"]}


def ending() -> FakeAnswerer:
    """Every answer ends where its grammar does."""
    return FakeAnswerer(lambda ask: (by_seed(ask)[0], "stop"))


def binding(folder: Path) -> Binding | None:
    return read_binding(read_manifest(folder).app, "set")


@pytest.mark.parametrize(
    ("bounds", "kind"), [({"grammar": CHOICE}, "regex"), ({"tools": TOOLS, "context": 800}, "lark")]
)
def test_it_is_what_the_engine_was_asked_with(
    target: Path, tmp_path: Path, bounds: dict[str, Any], kind: str
) -> None:
    parts = made(tmp_path, target, sources=SOURCES, mix=None, **bounds)
    SynthJob(*parts).make(tmp_path / "set", answerer := ending())
    found = binding(tmp_path / "set")
    assert found is not None and found.grammar.kind == kind
    assert found.sources == ("task", "far")
    assert found.of("task#3") == found.grammar == found.of("far#a:1") and not found.of("plain#1")
    asked = {ask.params.grammar for ask in answerer.asked}
    assert asked == {found.grammar, None}


def test_free_sets_say_so(target: Path, tmp_path: Path) -> None:
    run(made(tmp_path, target), tmp_path / "free")
    assert read_manifest(tmp_path / "free").app["bound"] is None
    assert binding(tmp_path / "free") is None
    plain = [{**source, "system": "none"} for source in SOURCES]
    run(made(tmp_path, target, sources=plain, grammar=CHOICE), tmp_path / "nobody")
    assert binding(tmp_path / "nobody") is None


def test_another_grammar_in_the_same_file_is_another_set(target: Path, tmp_path: Path) -> None:
    def parts(text: str) -> Any:
        (tmp_path / "answer.lark").write_text(text)
        return made(tmp_path, target, grammar={"kind": "lark", "file": "answer.lark"})

    run(parts('start: "yes" | "no"'), tmp_path / "set", ending())
    other = parts('start: "yes" | "never"')
    with pytest.raises(InvalidRequest, match="app: what answers are bound to changed"):
        open_set(tmp_path / "set", fresh(other), other[0])


def test_answers_of_a_set_that_does_not_say_it_are_free(target: Path, tmp_path: Path) -> None:
    run(made(tmp_path, target, grammar=CHOICE), tmp_path / "old", ending())
    path = tmp_path / "old" / MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["app"]["bound"]
    path.write_text(json.dumps(manifest))
    assert binding(tmp_path / "old") is None
