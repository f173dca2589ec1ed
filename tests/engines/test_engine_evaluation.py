"""Evaluations of engines that answer by a plan: what the rows hold, and what happens on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import evaluated_engine, main
from paceline.core import InvalidRequest
from paceline.engines.client import EngineError
from paceline.engines.evaluation import (
    EngineEvaluation,
    EvaluationBroke,
    Replicas,
    RunningServers,
    Servers,
)
from paceline.engines.evaluation.prompts import PromptSource, local_target
from paceline.evaluate.report import evaluation_table, lines, page
from paceline.evaluate.result import Evaluation, EvaluationSettings
from paceline.evaluate.sets import parse_sets
from tests.engines.fake import DRAFT_LEN, FakeClient, as_client
from tests.engines.served import write_prompts
from tests.training.foreign import save_foreign, write_random_set

SETTINGS = EvaluationSettings(tokens=40, temperatures=(0.0,))
FULLY = "drafter/full"


def evaluation(home: Path, servers: Servers, **settings: Any) -> EngineEvaluation:
    sets = parse_sets([str(write_prompts(home))])
    source = PromptSource(None, ["The target is not here."])
    chosen = EvaluationSettings(**{"tokens": 40, "temperatures": (0.0,), **settings})
    return EngineEvaluation(servers, source, "mine", sets, chosen)


def beside(engine: FakeClient, plain: FakeClient | None = None) -> RunningServers:
    return RunningServers(as_client(engine), None if plain is None else as_client(plain))


def test_two_servers_are_asked_in_turns_and_compared(tmp_path: Path) -> None:
    engine, plain = FakeClient(unequal=[1]), FakeClient(speculates=False)
    result = evaluation(tmp_path, beside(engine, plain), runs=2).run()
    (one,) = result.results
    assert one.requests == 5 and one.acceptance["drafter"].rounds > 20
    assert result.block == DRAFT_LEN
    assert {key: speed.requests for key, speed in one.speed.items()} == {FULLY: 5}
    speed = one.speed[FULLY]
    assert speed.speedup is not None and speed.tokens_per_round is not None
    assert speed.speedup > 1.5  # every event takes as long, with more tokens in it
    # The warm-up and then two runs of each prompt.
    assert len(engine.asked) == len(plain.asked) == 1 + 2 * 5
    assert result.same_text is False and not result.text_is_broken
    assert result.same_text_line.startswith("same text: 4 of 5 answers (80%), which this engine")
    assert "a second server (vllm) without speculation" in result.described


def test_every_request_states_its_sampling_and_shares_no_prefix(tmp_path: Path) -> None:
    engine = FakeClient()
    evaluation(tmp_path, beside(engine), temperatures=(1.0,)).run()
    salts = {ask.fields["cache_salt"] for ask in engine.asked}
    assert len(salts) == len({id(ask) for ask in engine.asked}) - 1  # the warm-up is the first
    for ask in engine.asked:
        assert ask.fields["repetition_penalty"] == ask.fields["top_p"] == 1.0
        assert ask.temperature == 1.0 and ask.is_chat


def test_without_an_answer_of_ar_there_is_acceptance_and_no_speed(tmp_path: Path) -> None:
    result = evaluation(tmp_path, beside(FakeClient())).run()
    (one,) = result.results
    assert one.speed == {} and one.same_text is None and result.same_text is None
    assert one.acceptance["drafter"].al > 1
    for text in (page(result), evaluation_table(result), "\n".join(lines(result))):
        assert "there is no speedup, and no text was compared" in text
        assert "The target is not here." in text
    assert "same text: not compared" in page(result)
    assert Evaluation.from_json(json.loads(json.dumps(result.as_json())), "again") == result


def test_an_engine_without_drafts_is_told(tmp_path: Path) -> None:
    engine = FakeClient(speculates=False)
    ask = engine.ask

    def undrafted(question: Any) -> Any:
        answer = ask(question)
        answer.rounds = []
        return answer

    engine.ask = undrafted  # type: ignore[method-assign]
    result = evaluation(tmp_path, beside(engine)).run()
    assert "None of 5 answers had a draft: vLLM drafts with --speculative-config" in page(result)


@pytest.mark.parametrize(("lives", "rows"), [(1, 0), (4, 3)])
def test_an_engine_that_dies_leaves_what_was_measured(
    tmp_path: Path, lives: int, rows: int
) -> None:
    plain = FakeClient(speculates=False)
    with pytest.raises(EvaluationBroke, match=r"engine failed after \d+ of 10 answers") as found:
        evaluation(tmp_path, beside(FakeClient(lives=lives), plain)).run()
    assert "at few, few#" in str(found.value) and "peer closed connection" in str(found.value)
    partial = found.value.partial
    if not rows:
        assert partial is None
        return
    assert partial is not None and partial.engine is not None
    assert partial.results[0].requests == rows
    assert partial.engine.broke_off == str(found.value)
    assert 'class="bad">PARTIAL: the engine failed' in page(partial)


def test_the_command_writes_a_partial_report_and_exits_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeClient(lives=4)
    servers = beside(engine)
    monkeypatch.setattr(evaluated_engine, "open_servers", lambda *_: servers)
    words = ["evaluate", "acme/unheard", "mine=./d", str(write_prompts(tmp_path))]
    options = ["--engine", "http://h:1", "--out", str(tmp_path / "r.html"), "--tokens", "40"]
    monkeypatch.setattr(PromptSource, "of", lambda *_: PromptSource(None))
    assert main([*words, *options, "--temperatures", "0"]) == 3
    shown = capsys.readouterr()
    assert "paceline: error: the engine failed after 3 of 5 answers, at few, few#4" in shown.err
    assert "PARTIAL" in shown.out and engine.closed
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["results"][0]["requests"] == 3
    assert written["engine"]["broke_off"].startswith("the engine failed after 3 of 5 answers")


# -- replicas --------------------------------------------------------------------------------------


class FakeReplica:
    def __init__(self, speculative: bool, log: list[str], lives: int = 10**9) -> None:
        self.client: Any = FakeClient(speculates=speculative, lives=lives)
        self._name, self._log, self._lives = ("with" if speculative else "without"), log, lives
        log.append(f"start {self._name}")

    def failure(self) -> str | None:
        ended = len(self.client.asked) >= self._lives
        return "it ended with exit code 137 (SIGKILL)" if ended else None

    def stop(self) -> None:
        self._log.append(f"stop {self._name}")


@pytest.mark.parametrize("fits", [True, False])
def test_replicas_run_side_by_side_where_they_fit_and_else_in_turns(
    tmp_path: Path, fits: bool
) -> None:
    log: list[str] = []
    memory = iter([100, 60 if fits else 40])
    servers = Replicas(lambda speculative: FakeReplica(speculative, log), lambda: next(memory))
    result = evaluation(tmp_path, servers, runs=2).run()
    servers.close()
    (one,) = result.results
    assert one.speed[FULLY].requests == 5
    assert all(len(runs) == 2 for row in one.rows for runs in row["seconds"].values())
    with_, without = "start with", "start without"
    if fits:
        assert log == [with_, without, "stop without", "stop with"]
    else:
        assert log == [with_, "stop with", without, "stop without", with_, "stop with"]


def test_a_replica_that_was_killed_says_how_and_all_are_stopped(tmp_path: Path) -> None:
    log: list[str] = []
    lives = {True: 3, False: 10**9}
    servers = Replicas(lambda on: FakeReplica(on, log, lives[on]), iter([100, 60]).__next__)
    with pytest.raises(EvaluationBroke, match=r"exit code 137 \(SIGKILL\)"):
        evaluation(tmp_path, servers).run()
    servers.close()
    assert sorted(log[-2:]) == ["stop with", "stop without"]


def test_a_replica_that_does_not_start_leaves_none_behind() -> None:
    def start(speculative: bool) -> FakeReplica:
        raise EngineError("the engine vllm ended with exit code 1")

    with pytest.raises(EngineError, match="exit code 1"):
        Replicas(start, lambda: 1)


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--engine", "vlm"], "engine: got 'vlm'; expected a server's address"),
        (["--engine", "http://h:1", "--warm"], "warm: got true; expected no --warm"),
        (["--engine", "http://h:1", "--dtype", "float32"], "dtype: got 'float32'"),
        (["--engine", "http://h:1", "--engine-arg=--x"], "engine_arg: got"),
        (["--engine", "vllm", "--reference", "http://h:2"], "no --reference beside"),
        (["--reference", "http://h:2"], "reference: got 'http://h:2'; expected --engine"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "m", "mine=./d", str(write_prompts(tmp_path)), *more]) == 2
    assert said in capsys.readouterr().err


def test_rows_of_token_ids_are_not_sent_to_another_tokenizer(tmp_path: Path) -> None:
    from tests.evaluate.made import synth_set

    sets = parse_sets([str(synth_set(tmp_path / "mine"))])
    with pytest.raises(InvalidRequest, match="token ids of another model"):
        PromptSource(None).read(sets[0], 4, 100)


def test_a_target_of_another_family_is_asked_in_token_ids_too(tmp_path: Path) -> None:
    """Its tokenizer lies here, and its own training set may be what it is asked."""
    target = local_target(str(save_foreign(tmp_path / "mixture", "qwen3_moe")))
    assert target is not None and target.loaded is None
    folder = write_random_set(tmp_path / "set", target.path)
    (spec,) = parse_sets([f"random={folder}"])
    asked = PromptSource(target).read(spec, 2, 100)
    assert [len(prompt.prompt) for prompt in asked.prompts] == [4, 4]
