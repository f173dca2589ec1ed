"""Test whole runs: a student learns the teacher's answers, goes on after a stop, and is judged."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.cli import main
from paceline.core import InvalidRequest
from paceline.dataset.run_log import read_log
from paceline.distil.config import DistilConfig
from paceline.distil.course import Course, Diverged, lr_share
from paceline.distil.inputs import read_inputs
from paceline.distil.questions import TASK_TOKENS
from paceline.distil.run import distil
from paceline.training.state import STATE
from tests.training.conftest import PROMPTS

OPTIONS: dict[str, Any] = {
    "rank": 0, "steps": 40, "texts": 8, "lr": 3e-3, "threads": 1, "eval_every": 10,
    "save_every": 5, "prompts": 4,
}  # fmt: skip


def config(student: Path, answers: Path, out: Path, **changes: Any) -> DistilConfig:
    return DistilConfig(
        student=str(student), out=str(out), **{"sets": (str(answers),), **OPTIONS, **changes}
    )


def quiet(text: str) -> None:
    pass


@pytest.mark.parametrize(
    "changes", [{}, {"rank": 16, "dtype": "float32"}, {"objective": "kl", "soft_tokens": 8}]
)
def test_a_student_learns_what_the_teacher_answers(
    student: Path, teacher: Path, answers: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    if changes.get("objective") == "kl":
        changes = {**changes, "teacher": str(teacher)}
    lines: list[str] = []
    result = distil(config(student, answers, tmp_path / "run", **changes), lines.append)
    losses = [row["loss"] for row in read_log(tmp_path / "run") if "loss" in row]
    assert losses[-1] < 0.6 * losses[0]  # the entropy of the distribution stays
    report = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert bool(report["reasons"]) == (result.student is None) and result.finished
    assert any("answers as the larger model's" in line for line in lines)


def test_a_student_that_is_better_is_kept(
    student: Path, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.distil.run.verdict", lambda *scores: [])
    result = distil(config(student, answers, tmp_path / "run", steps=2), quiet)
    assert result.student is not None and (result.student / "config.json").is_file()
    assert not (tmp_path / "run" / "candidate").exists()


def test_a_student_that_forgot_its_tasks_is_not_kept(
    student: Path, answers: Path, tmp_path: Path
) -> None:
    """The tasks ask for the student's own words of before, and it learns other ones."""
    llm = LLM(str(student), None, threads=1)
    told = SamplingParams(temperature=0.0, max_tokens=TASK_TOKENS)
    right = [result.text.strip() for result in llm.generate(PROMPTS[:6], told)]
    tasks = tmp_path / "tasks.jsonl"
    lines = zip(PROMPTS, right, strict=False)
    tasks.write_text("\n".join(json.dumps({"prompt": p, "answer": r}) for p, r in lines))
    chosen = config(student, answers, tmp_path / "run", tasks={"own words": str(tasks)})
    result = distil(chosen, quiet)
    report = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert report["before"]["tasks"] == {"own words": 1.0}
    after = report["after"]["tasks"]["own words"]
    assert after < 0.95 and result.student is None
    assert f"own words: {after:.3f} of the tasks right, 1.000 before" in result.reasons


def test_a_student_that_learnt_nothing_is_not_kept(
    student: Path, answers: Path, tmp_path: Path
) -> None:
    result = distil(config(student, answers, tmp_path / "run", steps=1, lr=0.0), quiet)
    assert result.student is None and result.finished
    assert "of the fields agree" in result.reasons[0]
    assert not (tmp_path / "run" / "student").exists()


@pytest.mark.parametrize(
    "changes",
    [{}, {"rank": 4}, {"objective": "kl"}, {"objective": "kl", "quantize": "int8"}],
)
def test_an_interrupted_run_goes_on_bit_for_bit(
    student: Path, teacher: Path, answers: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    if changes.get("objective") == "kl":
        changes = {**changes, "teacher": str(teacher)}
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = config(student, answers, tmp_path / "whole", steps=6, save_every=2, **changes)
    run = Course(whole, read_inputs(whole), quiet)
    run.run()
    first = config(student, answers, tmp_path / "cut", steps=6, save_every=2, **changes)
    cut = Course(first, read_inputs(first), quiet)
    step = cut.take_step

    def step_and_end() -> dict[str, float]:
        numbers = step()
        if cut.step == 3:
            cut.end()
        return numbers

    cut.take_step = step_and_end  # type: ignore[method-assign]
    assert not cut.run() and cut.step == 3
    again = Course(first, read_inputs(first), quiet)
    assert again.run() and again.step == 6
    for name, weight in run.weights.items():
        assert torch.equal(weight, again.weights[name]), name


def test_a_run_of_other_settings_is_refused(student: Path, answers: Path, tmp_path: Path) -> None:
    distil(config(student, answers, tmp_path / "run", steps=1), quiet)
    assert (tmp_path / "run" / STATE).is_file()
    with pytest.raises(InvalidRequest, match=r"lr: got 0.5; expected 0.003, as the run in"):
        distil(config(student, answers, tmp_path / "run", steps=1, lr=0.5), quiet)
    with pytest.raises(InvalidRequest, match="steps: got 9; expected the 1 steps that the run"):
        distil(config(student, answers, tmp_path / "run", steps=9), quiet)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"steps": 1, "epochs": 2.0}, "steps: got 1; expected either steps or epochs"),
        ({"teacher": "x"}, "teacher: got 'x'; expected objective kl beside it"),
        ({"soft_tokens": 4}, "soft_tokens: got 4; expected objective kl beside it"),
        ({"quantize": "int8"}, "quantize: got 'int8'; expected objective kl beside it"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        config(Path("s"), Path("a"), Path("run"), **changes)


def test_a_set_with_other_tokens_is_refused(student: Path, answers: Path, tmp_path: Path) -> None:
    other = tmp_path / "answers"
    other.mkdir()
    for path in answers.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["target"]["tokenizer_sha256"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidRequest, match="a set made with the student's tokenizer"):
        read_inputs(config(student, other, tmp_path / "run"))


def test_the_learning_rate_rises_and_falls() -> None:
    shares = [lr_share(step, 100, 0.05) for step in range(100)]
    assert shares[0] == pytest.approx(0.2) and shares[4] == 1.0 == max(shares)
    assert shares[99] == pytest.approx(0.1, abs=0.01)
    assert all(later <= before for before, later in pairwise(shares[5:]))


def test_the_teacher_is_the_model_that_answered(
    student: Path, teacher: Path, answers: Path, tmp_path: Path
) -> None:
    wrong = config(student, answers, tmp_path, objective="kl", teacher=str(student))
    with pytest.raises(InvalidRequest, match=r"teacher: got .*; expected the model that answered"):
        read_inputs(wrong)
    right = config(student, answers, tmp_path, objective="kl", teacher=str(teacher))
    inputs = read_inputs(right)
    assert inputs.teacher is not None and inputs.teachers == ["large"]
    with pytest.raises(InvalidRequest, match=r"sets: .*a name of its own for every set"):
        twice = (str(answers), f"{answers}/")
        read_inputs(config(student, answers, tmp_path, sets=twice))


def test_a_loss_that_is_not_finite_ends_the_run_by_name(
    student: Path, answers: Path, tmp_path: Path
) -> None:
    settings = config(student, answers, tmp_path, steps=2)
    course = Course(settings, read_inputs(settings), quiet)
    with torch.no_grad():
        next(iter(course.weights.values())).fill_(float("nan"))
    with pytest.raises(Diverged, match="step 0: the gradient is not finite; a lower lr may help"):
        course.take_step()


def test_a_run_is_watched_as_one_of_train_is(
    student: Path, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distil(config(student, answers, tmp_path / "run", steps=2), quiet)
    assert main(["drafter", "watch", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    assert "step 2" in told and "nats" in told and "train AL" not in told
