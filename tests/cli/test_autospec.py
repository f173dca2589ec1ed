"""`paceline autospec`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main

SIMULATE = ["autospec", "simulate", "--runs", "2", "--days", "40", "--seed", "11"]


def test_a_simulation_tells_what_was_decided_and_why_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SIMULATE, "--event", "drop", "--size", "0.2", "--at", "30"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "This is when it happens." in out and "within: retrain" in out
    assert "decided on 1 training 2" in out
    assert "control: alarms a day of ADWIN on all requests" in out
    assert "No retrain: nothing has changed." in out


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SIMULATE, "--event", "season", "--no-control", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["summary"]["runs"] == 2 and result["summary"]["control_a_day"] is None
    assert [run["seed"] for run in result["runs"]] == [11, 12]
    assert {"day", "kind", "decision", "why_not"} <= set(result["runs"][0]["decisions"][0])


def test_the_policy_file_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("retrain: {training_hours: 9000}", "utf-8")
    asked = [*SIMULATE, "--event", "drop", "--size", "0.2", "--at", "30", "--policy", str(path)]
    assert main([*asked, "--no-control", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["retrains"] == {"0": 2}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--at", "50"], "at: got 50.0; expected a day before the end (40)"),
        (["--event", "flood"], "season"),
        (["--policy", "nope.yaml"], "nope.yaml"),
    ],
)
def test_wrong_values_are_refused(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main([*SIMULATE, *more])
    except SystemExit as leaving:
        code = leaving.code
    assert code == 2 and said in capsys.readouterr().err
