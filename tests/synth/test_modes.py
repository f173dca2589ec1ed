"""The mode in which an application runs its target, by variables of the chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import SPLITS, TrainingRow, read_manifest, read_rows
from paceline.synth.endpoint import EndpointAnswerer
from paceline.synth.folder import open_set
from paceline.synth.prompts import make_prompt
from paceline.synth.wire import Wire

from . import test_endpoint, test_engine_answers
from .servers import Behaviour, serving
from .sets import Parts, fresh
from .test_ask import TOOLS, item, served
from .tiny import QUIET, TEMPLATE, WITH_MODES, made, save_target

OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
BEGIN = "<|im_start|>assistant\n"
SELF = {"name": "self", "kind": "self", "starts": ["My order"]}
WAYS = {"short": {"ask": "Shorter: {prompt}"}}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("thinker") / "tiny-thinker", WITH_MODES)


def in_mode(folder: Path, model: Path, variables: Any, **changes: Any) -> Parts:
    return made(folder, model, chat_template_kwargs=variables, **changes)


def rows(folder: Path) -> list[TrainingRow]:
    return [row for split in SPLITS for row in read_rows(folder, split)]


def prompts(parts: Parts, folder: Path) -> list[str]:
    """The prompts of a set's rows as text."""
    decode = parts[2].target.tokenizer.decode
    return [decode(row.ids[: row.spans[0][0]]) for row in rows(folder)]


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_prompts_have_the_mode_that_serving_gives_them(
    thinker: Path, tmp_path: Path, tools: Any
) -> None:
    texts = {}
    for name, variables in [("default", None), ("on", ON), ("off", OFF)]:
        _, _, asker = in_mode(tmp_path, thinker, variables, tools=tools, context=800)
        for source in (0, 1):
            ask = asker.ask(item(asker, source), make_prompt("where?", "0"))  # type: ignore[arg-type]
            more = {"tools": tools} if tools and source == 0 else {}
            expected = served(
                asker, list(ask.messages), chat_template_kwargs=variables or {}, **more
            )
            assert list(ask.prompt_ids) == expected
            texts[name, source] = asker.target.tokenizer.decode(ask.prompt_ids)
    for source in (0, 1):
        assert texts["default", source] == texts["on", source]
        assert texts["off", source] == texts["on", source] + QUIET


def test_prompts_that_the_target_writes_are_asked_for_in_the_mode(
    thinker: Path, tmp_path: Path
) -> None:
    said = {"name": "anew", "kind": "rewrite", "of": "task", "ways": WAYS}
    task = {"name": "task", "kind": "jsonl", "path": "task.jsonl"}
    _, _, asker = in_mode(tmp_path, thinker, OFF, sources=[task, said])
    base = make_prompt("where is it?", "short:0")
    turn = asker.turn(replace(item(asker, 1), base=base, prompt=None))
    assert list(turn.prompt_ids) == served(asker, list(turn.messages), chat_template_kwargs=OFF)
    assert asker.target.tokenizer.decode(turn.prompt_ids).endswith(BEGIN + QUIET)


def test_a_users_turn_is_begun_in_the_mode(tmp_path: Path) -> None:
    head = "{% if effort is defined %}<|im_start|>system\n{{ effort }}<|im_end|>\n{% endif %}"
    model = save_target(tmp_path / "effort", head + TEMPLATE)
    _, _, asker = in_mode(tmp_path, model, {"effort": "high"}, sources=[SELF], system=None)
    turn = asker.turn(replace(item(asker), prompt=None))
    text = asker.target.tokenizer.decode(turn.prompt_ids)
    assert text == "<|im_start|>system\nhigh<|im_end|>\n<|im_start|>user\nMy order"


def refused(folder: Path, model: Path, variables: Any, **changes: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        in_mode(folder, model, variables, **changes)
    name = next(iter(variables))
    assert caught.value.field == f"chat_template_kwargs.{name}"
    assert caught.value.value == variables[name]
    return str(caught.value)


def test_a_variable_that_the_template_does_not_read_is_refused(
    target: Path, thinker: Path, tmp_path: Path
) -> None:
    assert refused(tmp_path, thinker, {"enable_thinkin": False}) == (
        "chat_template_kwargs.enable_thinkin: got false; expected a variable that the model's chat "
        "template reads: enable_thinking"
    )
    assert "reads none" in refused(tmp_path, target, OFF)
    for name in ("messages", "tools", "add_generation_prompt", "eos_token"):
        assert "enable_thinking" in refused(tmp_path, thinker, {name: "a"})


def test_the_template_for_tools_has_to_read_it_where_there_are_tools(tmp_path: Path) -> None:
    model = save_target(tmp_path / "two", WITH_MODES)
    (model / "chat_template.jinja").write_text(WITH_MODES)
    beside = model / "additional_chat_templates"
    beside.mkdir(exist_ok=True)
    (beside / "tool_use.jinja").write_text(TEMPLATE)
    in_mode(tmp_path, model, OFF)
    assert "reads none" in refused(tmp_path, model, OFF, tools=TOOLS, context=800)
    line = {"prompt": "my order came broken", "functions": TOOLS}
    (tmp_path / "told.jsonl").write_text(json.dumps(line) + "\n")
    records = {"name": "told", "kind": "jsonl", "path": "told.jsonl", "tools": "functions"}
    assert "reads none" in refused(tmp_path, model, OFF, sources=[records])


def test_rows_of_our_engine_have_the_mode_and_the_manifest_keeps_it(
    thinker: Path, tmp_path: Path
) -> None:
    parts = in_mode(tmp_path, thinker, OFF, size={"rows": 8})
    test_engine_answers.run(parts, tmp_path / "set", max_num_seqs=8)
    asked = prompts(parts, tmp_path / "set")
    assert len(asked) == 8 and all(text.endswith(BEGIN + QUIET) for text in asked)
    manifest = read_manifest(tmp_path / "set")
    assert manifest.app["description"]["chat_template_kwargs"] == OFF
    answers = manifest.target["answers"]
    open_set(tmp_path / "set", fresh(parts, answers), parts[0])
    for variables in (ON, None):
        other = in_mode(tmp_path, thinker, variables, size={"rows": 8})
        with pytest.raises(InvalidRequest, match="app: chat_template_kwargs changed") as caught:
            open_set(tmp_path / "set", fresh(other, answers), other[0])
        assert caught.value.field == "out"


def answered(parts: Parts, behaviour: Behaviour, out: Path) -> dict[str, int]:
    with serving(behaviour) as url:
        answerer = EndpointAnswerer(Wire(parts[2], "served-name"), [url])
        try:
            return dict(test_endpoint.run(parts, out, answerer).counts)
        finally:
            answerer.close()


@pytest.mark.parametrize("token_ids", [True, False])
def test_servers_are_asked_for_the_mode(thinker: Path, tmp_path: Path, token_ids: bool) -> None:
    parts = in_mode(tmp_path, thinker, OFF, size={"rows": 8})
    behaviour = Behaviour(template=WITH_MODES, token_ids=token_ids)
    assert answered(parts, behaviour, tmp_path / "set")["rows"] == 8
    assert behaviour.bodies and all(
        body["chat_template_kwargs"] == OFF for body in behaviour.bodies
    )
    assert all(text.endswith(BEGIN + QUIET) for text in prompts(parts, tmp_path / "set"))


@pytest.mark.parametrize("token_ids", [True, False])
def test_a_server_that_ignores_the_mode_is_refused(
    thinker: Path, tmp_path: Path, token_ids: bool
) -> None:
    parts = in_mode(tmp_path, thinker, OFF)
    deaf = Behaviour(template=WITH_MODES, takes_variables=False, token_ids=token_ids)
    with pytest.raises(InvalidRequest, match="or chat_template_kwargs ignored") as caught:
        answered(parts, deaf, tmp_path / "set")
    assert caught.value.field == "url" and not (tmp_path / "set").exists()
