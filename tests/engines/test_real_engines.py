"""Evaluation and doctor with engines in processes of their own: ours, and vLLM where it is here.

vLLM is found as the commands find it: on the path, or as PACELINE_VLLM_PYTHON says.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.core import InvalidRequest
from paceline.engines import KINDS
from paceline.engines.doctor import ServedReport, examine_served
from paceline.engines.evaluation.replica import ProcessReplica
from paceline.engines.evaluation.rounds import RoundsAnswer, RoundsReader
from paceline.engines.kind import LaunchPlan
from paceline.engines.programs import find_program
from paceline.evaluate.result import Evaluation
from paceline.models.catalog import pull
from tests.engines.first_generation import DRAFT_LEN, QUESTIONS, SUBJECTS
from tests.engines.served import VLLM_DTYPE, make_pair, write_prompts
from tests.engines.test_process import comes_true, is_gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
TARGET = "smollm2-135m"
SHORT = ["--tokens", "64", "--temperatures", "0"]


def asked(count: int) -> list[str]:
    """Prompts of the kind that the drafter was made for."""
    return [
        QUESTIONS[index % len(QUESTIONS)].format(subject=SUBJECTS[7 * index % len(SUBJECTS)])
        for index in range(count)
    ]


def descendants(pid: int) -> list[int]:
    """Return the process ids of all that a process has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(word) for word in path.read_text().split()] if path.exists() else []
    return [*children, *(below for child in children for below in descendants(child))]


def evaluate_and_kill(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> tuple[int, dict[str, Any]]:
    """Run a command that starts replicas, and kill the one that drafts after so many answers.
    Nothing that was started may be left."""
    replicas: list[ProcessReplica] = []
    started, before = set[int](), set(descendants(os.getpid()))  # of this module, before: its vLLM
    begin, ask = ProcessReplica.__init__, RoundsReader.ask
    answers = iter(range(10**6))

    def noted(self: ProcessReplica, *args: Any) -> None:
        begin(self, *args)
        replicas.append(self)
        started.update(set(descendants(os.getpid())) - before)

    def broken(self: RoundsReader, question: Any) -> RoundsAnswer:
        if next(answers) == after:
            os.kill(replicas[0].pid, signal.SIGKILL)
        return ask(self, question)

    monkeypatch.setattr(ProcessReplica, "__init__", noted)
    monkeypatch.setattr(RoundsReader, "ask", broken)
    out = tmp_path / "broken.html"
    code = main([*words, "--out", str(out)])
    assert len(started) >= 2
    assert comes_true(lambda: all(map(is_gone, started)))
    path = out.with_suffix(".json")
    return code, json.loads(path.read_text()) if path.exists() else {}


def check_partial(code: int, report: dict[str, Any], prompts: int, said: str) -> None:
    assert code == 3
    assert "the engine failed after" in said or "without speculation failed after" in said
    assert "(SIGKILL)" in said
    assert report["engine"]["broke_off"] in said
    assert 0 < report["results"][0]["requests"] < prompts


# -- our own server --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("real-engines"))


def of_paceline(pair: tuple[Path, Path], home: Path) -> list[str]:
    options = ["--engine", "paceline", "--engine-arg=--threads=1", "--engine-arg=--kv-memory=16MiB"]
    return ["evaluate", str(pair[0]), f"mine={pair[1]}", str(write_prompts(home)), *options, *SHORT]


def test_replicas_of_our_own_are_started_compared_and_stopped(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = descendants(os.getpid())
    assert main([*of_paceline(pair, tmp_path), "--out", str(tmp_path / "r.html")]) == 0
    assert "same text: yes" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["results"][0]["speed"]["drafter/full"]["requests"] == 5
    assert "a replica without speculation" in report["engine"]["reference"]
    assert comes_true(lambda: descendants(os.getpid()) == before)


def test_our_own_engine_killed_on_the_way_leaves_a_partial_report_and_no_process(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = of_paceline(pair, tmp_path)
    code, report = evaluate_and_kill(words, tmp_path, monkeypatch, after=7)
    check_partial(code, report, 5, capsys.readouterr().err)


# -- vLLM ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vllm(first_generation: Path) -> Iterator[ProcessReplica]:
    """vLLM on a CPU, with a drafter of ours."""
    try:
        program = find_program("vllm")
    except InvalidRequest as error:
        pytest.skip(str(error))
    plan = LaunchPlan(
        str(pull(TARGET)),
        first_generation,
        max_model_len=1024,
        extra=("--dtype", VLLM_DTYPE),
        program=program,
    )
    replica = ProcessReplica(KINDS["vllm"], plan)
    yield replica
    replica.stop()


@pytest.fixture(scope="module")
def examined(vllm: ProcessReplica, first_generation: Path) -> ServedReport:
    conversations = [[{"role": "user", "content": prompt}] for prompt in asked(16)]
    return examine_served(vllm.client, TARGET, str(first_generation), conversations, 64)


def test_vllm_accepts_by_position_what_our_drafter_does_on_the_same_tokens(
    examined: ServedReport,
) -> None:
    assert examined.rounds > 100 and examined.draft_len == DRAFT_LEN
    for each in examined.positions:
        assert abs(each.short) <= 2 * share_error(each.achieved, examined.rounds), each
    findings = {finding.name: finding.ok for finding in examined.findings}
    for name in ("checkpoint", "checkpoint format", "acceptance", "prompt", "served target",
                 "how the engine reads the checkpoint", "draft length"):  # fmt: skip
        assert findings[name], examined.verdict


def test_vllm_is_evaluated_with_what_our_drafter_has_on_the_same_tokens(
    vllm: ProcessReplica, examined: ServedReport, first_generation: Path, tmp_path: Path
) -> None:
    prompts = str(write_prompts(tmp_path, asked(16)))
    out = tmp_path / "vllm.html"
    words = [TARGET, f"mine={first_generation}", prompts, "--out", str(out), *SHORT]
    assert main(["evaluate", *words, "--engine", vllm.client.url]) == 0
    served = Evaluation.read_file(out.with_suffix(".json"), "served")
    assert served.engine is not None and served.engine.kind == "vllm"
    assert served.engine.prompts == "token ids"
    assert served.engine.reference is None and served.same_text is None
    (result,) = served.results
    found = result.acceptance["drafter"]
    assert result.requests == 16 and found.rounds > 100
    for share, ours in zip(found.positions, examined.positions, strict=True):
        assert share.share is not None
        error = share_error(ours.expected, found.rounds)
        assert abs(share.share - ours.expected) <= 2 * error, (share, ours)


def share_error(share: float, rounds: int) -> float:
    """The standard error of a share, and of one that is 0 or 1 that of a single round."""
    return max(share * (1 - share), 1 / rounds) ** 0.5 / rounds**0.5


def test_vllm_killed_on_the_way_leaves_a_partial_report_and_no_process(
    first_generation: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        find_program("vllm")
    except InvalidRequest as error:
        pytest.skip(str(error))
    prompts = str(write_prompts(tmp_path, asked(4)))
    words = ["evaluate", TARGET, f"mine={first_generation}", prompts, "--engine", "vllm"]
    words += [f"--engine-arg=--dtype={VLLM_DTYPE}", "--max-model-len", "512", *SHORT]
    code, report = evaluate_and_kill(words, tmp_path, monkeypatch, after=5)
    check_partial(code, report, 4, capsys.readouterr().err)
