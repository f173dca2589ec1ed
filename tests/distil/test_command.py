"""`paceline distil`: its exit codes, and what it tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli import main

OPTIONS = ("--steps", "1", "--lr", "0", "--rank", "0", "--threads", "1", "--prompts", "4")


def run(*arguments: object) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def test_a_student_that_is_no_better_ends_with_3_and_says_why(
    student: Path, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("distil", answers, "--student", student, "--out", out, *OPTIONS) == 3
    told = capsys.readouterr().out
    assert "learning for 1 steps" in told and "not kept: answers, held out" in told


def test_a_bad_option_ends_with_2_and_its_name(
    student: Path, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ("distil", answers, "--student", student, "--out", out, *OPTIONS)
    assert run(*arguments, "--tasks", "sums") == 2
    assert "tasks: got 'sums'; expected NAME=FILE" in capsys.readouterr().err
    assert run(*arguments, "--tasks", f"sums={tmp_path}/none.jsonl") == 2
    assert "tasks: got" in capsys.readouterr().err
    assert not out.exists()
