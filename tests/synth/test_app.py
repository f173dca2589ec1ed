"""app.yaml is read strictly: what cannot be honoured is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.synth.app import load_app, read_app

from .tiny import description

ROOT = Path(__file__).resolve().parents[2]
JSONL = {"name": "a", "kind": "jsonl", "path": "task.jsonl"}
TOOL = {"type": "function", "function": {"name": "stop"}}


def source(**changes: Any) -> dict[str, Any]:
    return {"sources": [{**JSONL, **changes}]}


def derived(base: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A source, and another one that is made from it."""
    copy = {"name": "copy", "kind": "noisy", "of": "a", **changes}
    return {"sources": [{**JSONL, **(base or {})}, copy]}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"colour": "red"}, "colour", "expected one of name, base"),
    ({"name": None}, "name", "required"),
    ({"name": ""}, "name", "not empty"),
    ({"system": 7}, "system", "text"),
    ({"template": "no place"}, "template", "{prompt} in it once"),
    ({"template": "{prompt} {prompt}"}, "template", "once"),
    ({"chat_template_kwargs": "no"}, "chat_template_kwargs", "a mapping"),
    ({"chat_template_kwargs": {1: True}}, "chat_template_kwargs[1]", "text"),
    ({"sampling": {"temprature": 1}}, "sampling.temprature", "did you mean temperature?"),
    ({"sampling": {"temperature": -1}}, "sampling.temperature", "from 0 to 100"),
    ({"sampling": {"temperature": []}}, "sampling.temperature", "list of numbers"),
    ({"sampling": {"temperature": [0.5, "hot"]}}, "sampling.temperature", "a number"),
    ({"sampling": {"top_p": 0}}, "sampling.top_p", "above 0"),
    ({"sampling": {"max_tokens": 0}}, "sampling.max_tokens", "at least 1"),
    ({"sampling": 3}, "sampling", "a mapping"),
    ({"grammar": {"kind": "xml", "value": "a"}}, "grammar.kind", "'regex', 'lark' or 'choice'"),
    ({"grammar": {"kind": "json"}}, "grammar.value", "either value or file"),
    ({"grammar": {"kind": "json", "value": {}, "file": "x"}}, "grammar.value", "either"),
    ({"grammar": {"kind": "json", "value": "{}"}}, "grammar.value", "mapping"),
    ({"grammar": {"kind": "json", "file": "none.json"}}, "grammar.file", "readable file"),
    ({"grammar": {"kind": "choice", "value": []}}, "grammar.value", "none of them empty"),
    ({"grammar": {"kind": "regex", "value": 7}}, "grammar.value", "the regex as a text"),
    ({"tools": []}, "tools", "a list of tools"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "a name of its own"),
    ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
    ({"tools": [{"function": {"name": "a", "parameters": {"type": "array"}}}]},
     "tools[0].function.parameters", "type object"),
    ({"tools": [TOOL], "grammar": {"kind": "regex", "value": "a"}}, "grammar", "nothing beside"),
    ({"tools": [TOOL], "tool_choice": "none"}, "tool_choice", "'required' or 'auto'"),
    ({"tool_choice": "auto"}, "tool_choice", "tools beside it"),
    ({"sources": []}, "sources", "a list of prompt sources"),
    ({"sources": [JSONL, JSONL]}, "sources[1].name", "a name of its own"),
    ({"sources": ["a"]}, "sources[0]", "a mapping"),
    (source(kind="sql"), "sources[0].kind", "jsonl, text, package, phrases, self"),
    (source(unit="function"), "sources[0].unit", "expected one of name, part"),
    (source(name="a#1"), "sources[0].name", "without #"),
    (source(part="neighbour"), "sources", "to train on or to judge by"),
    (derived(of="none"), "sources[1].of", "a source above it"),
    (derived(of="copy"), "sources[1].of", "a source above it"),
    (derived({"kind": "self", "path": None}), "sources[1].of", "with prompts of its own"),
    (derived({"part": "foreign"}), "sources[1].of", "part: foreign here too"),
    (derived({"user_data": True}), "sources[1].user_data", "users' own data"),
    (derived(noise={}), "sources[1].noise", "at least one"),
    (derived(kind="rewrite", ways={"a": {"ask": "say it"}}), "sources[1].ways.a.ask", "{prompt}"),
    (derived(kind="rewrite", ways={}), "sources[1].ways", "at least one"),
    (source(kind="log", user_data=False), "sources[0].user_data", "users' own data"),
    (source(part="test"), "sources[0].part", "'replay', 'neighbour' or 'foreign'"),
    (source(weight=0), "sources[0].weight", "a number from"),
    (source(count=0), "sources[0].count", "at least 1"),
    (source(system="mine"), "sources[0].system", "'own' or 'none'"),
    (source(length=[9, 3]), "sources[0].length", "shortest first"),
    (source(length=5), "sources[0].length", "[20, 2000]"),
    (source(user_data="no"), "sources[0].user_data", "true or false"),
    (source(language=False), "sources[0].language", "text"),
    ({"sources": [{"name": "s", "kind": "self", "samples": 2}]}, "sources[0].samples", "1:"),
    ({"sources": [{"name": "s", "kind": "self", "starts": [""]}]}, "sources[0].starts", "none"),
    ({"mix": {"on_task": 0.5}}, "mix.replay", "a share above 0"),
    ({"mix": {"on_task": 0.5, "replay": 0.3, "neighbour": 0.1}}, "mix", "add up to 1"),
    ({"mix": {"on_task": 1, "others": 0}}, "mix.others", "on_task, replay, neighbour"),
    ({"languages": ["en", "de"]}, "languages", "the sources' languages: en"),
    ({"languages": {"en": 0}}, "languages.en", "a number from"),
    ({"held_out": 0.9}, "held_out", "0 to 0.5"),
    ({"size": {"rows": 1, "answer_tokens": 2}}, "size", "one of the two"),
    ({"size": {"rows": 0}}, "size.rows", "at least 1"),
    ({"seed": -1}, "seed", "at least 0"),
    ({"shard": "many"}, "shard", "a whole number"),
    ({"same_answer": 0}, "same_answer", "at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "expected"), WRONG, ids=lambda v: str(v)[:40])
def test_what_is_wrong_is_named(
    changes: dict[str, Any], field: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_app(description(tmp_path, "m", **changes), tmp_path)
    assert caught.value.field == field
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "valid YAML"),
        ("name: a\nname: b\n", "'name' stands twice"),
        ("sources: [{name: a, name: b}]", "'name' stands twice"),
        ("- a", "a mapping"),
        ("", "a mapping"),
        ("name: !!python/object/apply:os.getcwd []", "valid YAML"),
    ],
)
def test_a_file_that_is_no_app_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        load_app(tmp_path / "app.yaml")
    with pytest.raises(InvalidRequest, match="a readable YAML file"):
        load_app(tmp_path / "none.yaml")


def test_defaults_and_shares(tmp_path: Path) -> None:
    app = read_app(description(tmp_path, "m"), tmp_path)
    assert app.shares == {"on_task": 0.75, "replay": 0.15, "neighbour": 0.1}
    assert app.held_out == 0.05 and app.sampling.temperature == (3.0,)
    assert [spec.own_system for spec in app.sources] == [True, False, False]
    alone = read_app(description(tmp_path, "m", **source()), tmp_path)
    assert alone.shares == {"on_task": 1.0}
    assert json.dumps(app.given)  # the manifest keeps it


def test_a_base_gives_what_is_left_out(tmp_path: Path) -> None:
    whole = description(tmp_path, "m")
    (tmp_path / "shop.yaml").write_text(json.dumps(whole))
    changes = {"name": "tiny again", "sampling": {"max_tokens": 8}}
    app = read_app({"base": "shop.yaml", "seed": None, **changes}, tmp_path)
    expected = read_app({**whole, **changes}, tmp_path)
    assert app == expected and app.sampling.temperature == (1.0,)  # a field is taken whole
    assert app.given == expected.given  # a set is made again without the base


@pytest.mark.parametrize("base", [3, "", "none.yaml", "../shop.yaml", "list.yaml", "based.yaml"])
def test_a_base_that_is_no_whole_description_is_refused(base: object, tmp_path: Path) -> None:
    inner = tmp_path / "apps"
    inner.mkdir()
    for folder in (tmp_path, inner):
        (folder / "shop.yaml").write_text(json.dumps(description(folder, "m")))
    (inner / "list.yaml").write_text("- a")
    (inner / "based.yaml").write_text("base: shop.yaml")
    with pytest.raises(InvalidRequest) as caught:
        read_app({"base": base}, inner)
    assert caught.value.field == "base"
    assert read_app({"base": "shop.yaml"}, inner).name == "tiny"


@pytest.mark.parametrize("name", ["support-varied", "support-tau2"])
def test_agents_of_one_shop_are_sent_the_same_beside_other_prompts(name: str) -> None:
    agents = [load_app(ROOT / "apps" / f"{each}.yaml") for each in ("support", name)]
    sent = [(app.name, app.system, app.grammar, app.sampling) for app in agents]
    assert sent[0] == sent[1]
    assert agents[0].sources != agents[1].sources


@pytest.mark.parametrize("name", ["support", "general"])
def test_the_applications_in_the_repository_are_read(name: str) -> None:
    app = load_app(ROOT / "apps" / f"{name}.yaml")
    assert app.model == "smollm2-135m"
    trained = [spec for spec in app.sources if spec.part in ("on_task", "replay")]
    paths = " ".join(
        path
        for spec in trained
        for path in (*getattr(spec, "path", ()), *getattr(spec, "files", ()))
    )
    assert "live_" not in paths and "mt_bench" not in paths and "foreign" not in paths
    assert {spec.part for spec in app.sources} >= {"on_task", "neighbour", "foreign"}
