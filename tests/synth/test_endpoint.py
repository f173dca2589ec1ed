"""Answers from servers: the same rows, or a clear refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import SPLITS, TrainingRow, read_rows
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.synth import endpoint
from paceline.synth.endpoint import EndpointAnswerer, EndpointDown
from paceline.synth.folder import Collector, open_set
from paceline.synth.job import Run, SynthJob
from paceline.synth.wire import Wire
from tests.server.conftest import listening

from . import test_engine_answers
from .servers import Behaviour, serving
from .sets import Parts, content, fresh
from .tiny import made, save_target

TOOLS = [{"type": "function", "function": {"name": "refund"}}]


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_REST", 0.001)


@contextmanager
def answering(parts: Parts, *behaviours: Behaviour, **options: Any) -> Iterator[EndpointAnswerer]:
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(behaviour)) for behaviour in behaviours]
        with_urls = options.pop("urls", urls)
        wire = Wire(parts[2], "served-name")
        answerer = EndpointAnswerer(wire, with_urls, **options)
        try:
            yield answerer
        finally:
            answerer.close()


def run(parts: Parts, out: Path, answerer: EndpointAnswerer) -> Collector:
    app, sources, asker = parts
    for ask in asker.probes(sources):
        answerer.probe(ask)
    collector = Collector(out, open_set(out, fresh(parts, answerer.what), app), app)
    Run(SynthJob(*parts), answerer, collector).run()
    return collector


def rows(folder: Path) -> list[TrainingRow]:
    return [row for split in SPLITS for row in read_rows(folder, split)]


def test_returned_ids_and_retokenised_text_give_the_same_set(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target)
    behaviours = {
        "ids": Behaviour(seconds=0.02),
        "ids-without-end": Behaviour(with_end=False),
        "text": Behaviour(token_ids=False),
        "strict": Behaviour(knows_token_ids=False),
        "text-without-usage": Behaviour(token_ids=False, usage=False),
    }
    for name, behaviour in behaviours.items():
        with answering(parts, behaviour, concurrency=7) as answerer:
            run(parts, tmp_path / name, answerer)
        assert content(tmp_path / name) == content(tmp_path / "ids")
        assert behaviour.most <= 7
    assert behaviours["ids"].most > 3
    assert len(rows(tmp_path / "ids")) == 40
    end = parts[2].target.tokenizer.eos_token_id
    assert all(row.ids[-1] == end for row in rows(tmp_path / "ids"))
    assert answerer.speed().batch > 1 and answerer.speed().tokens > 100


def test_what_is_sent_is_what_the_application_says(target: Path, tmp_path: Path) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 20, "stop": ["zz"]}
    parts = made(tmp_path, target, sampling=sampling)
    behaviour = Behaviour()
    with answering(parts, behaviour, api_key="secret") as answerer:
        run(parts, tmp_path / "set", answerer)
    body = next(body for body in behaviour.bodies if len(body["messages"]) == 2)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert set(body) == {
        "model", "messages", "max_tokens", "temperature", "seed", "top_p", "stop",
        "return_token_ids",
    }  # fmt: skip
    assert body["model"] == "served-name" and body["stop"] == ["zz"] and body["top_p"] == 0.9
    assert set(behaviour.keys) == {"Bearer secret"}
    # Behind a stop text there is no end of turn.
    with answering(parts, Behaviour(with_end=False)) as answerer:
        run(parts, tmp_path / "stopped", answerer)
    end = parts[2].target.tokenizer.eos_token_id
    assert all(row.ids[-1] != end for row in rows(tmp_path / "stopped"))


def test_text_that_does_not_retokenise_is_dropped_and_counted(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target, size={"rows": 5}, same_answer=100)
    with answering(parts, Behaviour(token_ids=False, text="caf\u00e9")) as answerer:
        counts = run(parts, tmp_path / "set", answerer).counts
    assert counts["not_retokenised"] == 180 and "rows" not in counts


@pytest.mark.parametrize(
    "names", [("reasoning_content", "reasoning"), ("reasoning", "reasoning_content")]
)
def test_reasoning_that_a_server_takes_out_of_the_text_is_refused(
    names: tuple[str, str], target: Path, tmp_path: Path
) -> None:
    reasoning = {names[0]: "hm", names[1]: None}
    parts, apart = made(tmp_path, target), Behaviour(token_ids=False, reasoning=reasoning)
    with (
        answering(parts, apart) as answerer,
        pytest.raises(
            InvalidRequest,
            match=r"url: got .* token ids, or one started without its reasoning parser",
        ),
    ):
        run(parts, tmp_path / "set", answerer)
    assert len(apart.bodies) == 1 and not (tmp_path / "set").exists()


def test_rows_are_dropped_only_where_their_reasoning_is_lost(target: Path, tmp_path: Path) -> None:
    parts, reasoning = made(tmp_path, target), {"reasoning_content": "hm"}
    with answering(parts, Behaviour(reasoning=reasoning)) as answerer:
        assert run(parts, tmp_path / "ids", answerer).complete  # token ids are all that it said
    empty = Behaviour(token_ids=False, reasoning={"reasoning_content": None, "reasoning": ""})
    with answering(parts, empty) as answerer:
        run(parts, tmp_path / "empty", answerer)
    with answering(parts, empty) as answerer:
        for ask in parts[2].probes(parts[1]):
            answerer.probe(ask)
        empty.reasoning = reasoning  # of a target that thinks only now and then
        out = tmp_path / "later"
        collector = Collector(out, open_set(out, fresh(parts), parts[0]), parts[0])
        Run(SynthJob(*parts), answerer, collector).run()
    assert content(tmp_path / "empty") == content(tmp_path / "ids")
    assert collector.counts["reasoning_apart"] > 0 and "rows" not in collector.counts


@pytest.mark.parametrize("token_ids", [True, False])
def test_another_tokenizer_is_refused_on_the_first_request(
    target: Path, tmp_path: Path, token_ids: bool
) -> None:
    parts = made(tmp_path, target)
    behaviour = Behaviour(extra_prompt=1, token_ids=token_ids)
    with (
        answering(parts, Behaviour(), behaviour) as answerer,
        pytest.raises(InvalidRequest, match="tokenizer mismatch") as caught,
    ):
        run(parts, tmp_path / "set", answerer)
    assert caught.value.field == "url" and len(behaviour.bodies) == 1
    assert not (tmp_path / "set").exists()


def test_a_server_whose_prompts_change_on_the_way_loses_its_rows(
    target: Path, tmp_path: Path
) -> None:
    parts, behaviour = made(tmp_path, target, size={"rows": 500}), Behaviour()
    with answering(parts, behaviour) as answerer:
        for ask in parts[2].probes(parts[1]):
            answerer.probe(ask)
        behaviour.extra_prompt = 1
        app = parts[0]
        out = tmp_path / "set"
        collector = Collector(out, open_set(out, fresh(parts), app), app)
        Run(SynthJob(*parts), answerer, collector).run()
    assert collector.counts == {"prompts": 180, "prompt_mismatch": 180}


def test_busy_and_failing_servers_are_asked_again(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target)
    with answering(parts, Behaviour()) as answerer:
        run(parts, tmp_path / "calm", answerer)
    busy = Behaviour()
    with answering(parts, busy, Behaviour(), concurrency=4) as answerer:
        for ask in parts[2].probes(parts[1]):
            answerer.probe(ask)
        busy.failures = [429, 500, 503, 429, 502]
        run(parts, tmp_path / "busy", answerer)
    assert not busy.failures and len(busy.bodies) > 8
    assert content(tmp_path / "busy") == content(tmp_path / "calm")


def test_a_server_that_dies_leaves_its_work_to_the_others(target: Path, tmp_path: Path) -> None:
    parts, alive = made(tmp_path, target), Behaviour()
    with (
        serving(alive) as url,
        serving(Behaviour()) as gone,
        answering(parts, urls=[gone, url]) as answerer,
    ):
        answerer.probe(next(parts[2].probes(parts[1])))
        answerer._servers[0].http.base_url = "http://127.0.0.1:9"  # nobody listens there
        app = parts[0]
        collector = Collector(tmp_path / "s", open_set(tmp_path / "s", fresh(parts), app), app)
        Run(SynthJob(*parts), answerer, collector).run()
    assert collector.complete and len(rows(tmp_path / "s")) == 40


def test_when_nobody_answers_any_more_the_run_ends_and_can_go_on(
    target: Path, tmp_path: Path
) -> None:
    parts, dying = made(tmp_path, target), Behaviour()
    with answering(parts, Behaviour()) as answerer:
        run(parts, tmp_path / "whole", answerer)
    with answering(parts, dying, concurrency=1) as answerer:
        for ask in parts[2].probes(parts[1]):
            answerer.probe(ask)
        dying.failures = [0] * 20 + [503] * 100
        with pytest.raises(EndpointDown, match=r"no server answers after 8 tries.*503"):
            run(parts, tmp_path / "set", answerer)
        dying.failures = []
    assert 0 < len(rows(tmp_path / "set")) < 40
    with answering(parts, Behaviour()) as answerer:
        run(parts, tmp_path / "set", answerer)
    assert content(tmp_path / "set") == content(tmp_path / "whole")


def test_refusals_are_faults_of_one_ask_or_of_the_run(target: Path, tmp_path: Path) -> None:
    parts, picky = made(tmp_path, target, size={"rows": 500}), Behaviour(refuse="number 7?")
    with answering(parts, picky) as answerer:
        counts = run(parts, tmp_path / "set", answerer).counts
    assert counts["refused_by_server"] == 3 and counts["rows"] == 177
    for failures, message in [([401], "status 401"), ([404], "404"), ([500] * 9, "status 500")]:
        with (
            answering(parts, Behaviour(failures=failures)) as answerer,
            pytest.raises(InvalidRequest, match=message) as caught,
        ):
            run(parts, tmp_path / "none", answerer)
        assert caught.value.field == "url"
    with (
        answering(parts, urls=["http://127.0.0.1:9"]) as answerer,
        pytest.raises(InvalidRequest, match="a server that answers a chat"),
    ):
        run(parts, tmp_path / "none", answerer)
    locked = Behaviour()
    with answering(parts, locked) as answerer:
        answerer.probe(next(parts[2].probes(parts[1])))
        locked.failures = [403]
        with pytest.raises(EndpointDown, match="status 403"):
            app = parts[0]
            out = tmp_path / "locked"
            collector = Collector(out, open_set(out, fresh(parts), app), app)
            Run(SynthJob(*parts), answerer, collector).run()


GRAMMARS: list[tuple[dict[str, Any], str, str, dict[str, Any]]] = [
    ({"kind": "choice", "value": ["yes", "no"]}, "yes", "maybe",
     {"structured_outputs": {"choice": ["yes", "no"]}}),
    ({"kind": "regex", "value": "[0-9]{3}"}, "123", "12a",
     {"structured_outputs": {"regex": "[0-9]{3}"}}),
    ({"kind": "regex", "value": "[0-9]{3}"}, "123", "12",
     {"structured_outputs": {"regex": "[0-9]{3}"}}),
    ({"kind": "lark", "value": 'start: "a" "b"'}, "ab", "abc",
     {"structured_outputs": {"lark": 'start: "a" "b"'}}),
    ({"kind": "json", "value": {"type": "array", "items": {"type": "integer"}}},
     "[1,\n  2 ,3]", '["1"]', {"response_format": {"type": "json_schema", "json_schema": {
         "name": "tiny", "strict": True,
         "schema": {"type": "array", "items": {"type": "integer"}}}}}),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "right", "wrong", "sent"), GRAMMARS, ids=lambda v: str(v)[:30])
def test_a_grammar_is_sent_and_seen_to(
    grammar: dict[str, Any],
    right: str,
    wrong: str,
    sent: dict[str, Any],
    target: Path,
    tmp_path: Path,
) -> None:
    parts = made(tmp_path, target, grammar=grammar, same_answer=100)
    behaviour = Behaviour(text=right)
    with answering(parts, behaviour) as answerer:
        counts = run(parts, tmp_path / "set", answerer).counts
    assert counts["rows"] == 40
    bound = [body for body in behaviour.bodies if len(body["messages"]) == 2]
    assert bound and all(sent.items() <= body.items() for body in bound)
    assert all(not sent.keys() & body.keys() for body in behaviour.bodies if body not in bound)
    with (
        answering(parts, Behaviour(text=wrong)) as answerer,
        pytest.raises(InvalidRequest, match="keeps to the application's grammar"),
    ):
        run(parts, tmp_path / "none", answerer)


def test_tools_need_a_server_that_returns_token_ids(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target, tools=TOOLS, context=512, same_answer=100)
    call = '<tool_call>\n{"name": "refund", "arguments": {}}\n</tool_call>'
    behaviour = Behaviour(text=call, calls=True)
    with answering(parts, behaviour) as answerer:
        run(parts, tmp_path / "set", answerer)
    said = [row for row in rows(tmp_path / "set") if row.part == "on_task"]
    ((start, end),) = said[0].spans
    assert parts[2].target.tokenizer.decode(said[0].ids[start : end - 1]) == call
    bound = [body for body in behaviour.bodies if "tools" in body]
    assert bound[0]["tools"] == TOOLS and bound[0]["tool_choice"] == "required"
    for wrong, message in [
        (Behaviour(text=call, calls=True, token_ids=False), "returns token ids"),
        (Behaviour(text="hello"), "keeps to the application's grammar"),
    ]:
        with (
            answering(parts, wrong) as answerer,
            pytest.raises(InvalidRequest, match=message),
        ):
            run(parts, tmp_path / "none", answerer)


@pytest.mark.parametrize("bound", ["free", "grammar", "tools"])
def test_our_own_server_and_our_own_engine_write_the_same_rows(bound: str, tmp_path: Path) -> None:
    folder = save_target(tmp_path / "target")
    more: dict[str, Any] = {
        "free": {},
        "grammar": {"grammar": {"kind": "json", "value": test_engine_answers.SCHEMA}},
        "tools": {"tools": TOOLS, "context": 512},
    }[bound]
    sampling = {"temperature": 2.0, "max_tokens": 80}
    parts = made(tmp_path, folder, same_answer=1000, sampling=sampling, **more)
    test_engine_answers.run(parts, tmp_path / "engine")
    config = EngineConfig(model=str(folder), drafter=None, threads=1, max_model_len=512)
    engine = AsyncEngine(build_engine(config))
    with (
        listening(engine, served_model_names=("served-name",)) as server,
        answering(parts, urls=[f"{server.url}/v1"]) as answerer,
    ):
        run(parts, tmp_path / "server", answerer)
    mine, theirs = rows(tmp_path / "engine"), rows(tmp_path / "server")
    assert mine == theirs and len(mine) == 40
    assert json.loads((tmp_path / "server" / "manifest.json").read_text())["target"]["answers"]


def test_a_target_that_no_engine_of_ours_serves_is_answered_by_its_server(tmp_path: Path) -> None:
    folder = save_target(tmp_path / "mixture")
    config = json.loads((folder / "config.json").read_text())
    mixture = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    (folder / "config.json").write_text(json.dumps(config | mixture))
    parts = made(tmp_path, folder)
    with answering(parts, Behaviour()) as answerer:
        run(parts, tmp_path / "set", answerer)
    assert len(rows(tmp_path / "set")) == 40
    with pytest.raises(InvalidRequest, match="url: got null; expected a server of mixture"):
        SynthJob(*parts).own()
