"""`paceline roofline fit`: what it learns of measured steps, how it judges itself, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.roofline.architecture import read_architecture
from paceline.roofline.cost import Deployment, Workload
from paceline.roofline.device import Calibration, hardware

TRUE = Calibration(memory_efficiency=0.6, attention_memory_efficiency=0.6, step_overhead=0.002)
ASKED = ("--model", "Qwen3-8B", "--hardware", "H100-SXM")


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Steps of an engine that is known exactly, in no order."""
    deployment = Deployment(read_architecture("Qwen3-8B"), hardware("H100-SXM"))
    lines = ["batch,rows,context,ms"]
    for batch, rows in [(8, 1), (1, 4), (1, 1), (2, 8), (1, 16), (4, 2), (16, 1), (1, 2), (4, 4)]:
        load = Workload(batch, rows, 2048)
        seconds = deployment.forward_time(load, TRUE).total
        lines.append(f"{batch},{rows},2048,{1e3 * seconds:.6f}")
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_it_learns_the_engine_and_says_how_well_it_does_on_steps_it_has_not_seen(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "calibration.json"
    arguments = ["roofline", "fit", str(points), *ASKED, "--fit-on", "1/3", "--out", str(out)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "fitted to 3 of 9 points" in shown and shown.count("held out") == 6
    assert "held-out points (6): median error 0.0%" in shown
    learned = json.loads(out.read_text())
    assert learned["calibration"]["memory_efficiency"] == pytest.approx(0.6, rel=0.02)
    assert learned["held_out"]["points"] == 6
    assert learned["held_out"]["high_error"] < 0.01
    assert (learned["model"], learned["hardware"]) == ("Qwen3-8B", "H100-SXM")


def test_what_it_writes_is_what_predict_reads(points: Path, tmp_path: Path) -> None:
    out, answer = tmp_path / "calibration.json", tmp_path / "answer.json"
    assert main(["roofline", "fit", str(points), *ASKED, "--out", str(out)]) == 0
    more = ["--drafter", "mtp:0.1,alpha=0.7", "--context", "2048", "--batch", "8"]
    arguments = ["predict", "Qwen3-8B", "--hardware", "H100-SXM", *more]
    assert main([*arguments, "--calibration", str(out), "--json", str(answer)]) == 0
    deployment = Deployment(read_architecture("Qwen3-8B"), hardware("H100-SXM"))
    step = deployment.forward_time(Workload(8, 1, 2048), TRUE).total
    found = json.loads(answer.read_text())["ar"]["calibrated"]["step_ms"]
    assert found == pytest.approx(1e3 * step, rel=0.01)


def test_it_says_what_the_points_do_not_tell(
    points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "calibration.json"
    assert main(["roofline", "fit", str(points), *ASKED, "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "held-out points: none; --fit-on 1/3 would say" in shown
    assert "not identified (" in shown
    assert json.loads(out.read_text())["held_out"] is None


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("batch,rows,context,ms\n1,1,10,-3\n", [], "seconds: got -0.003"),
        ("batch,rows,ms\n1,1,10\n", [], "points"),
        ("", [], "points: got"),
        ("batch,rows,context,ms\n1,1,10,3\n", ["--fit-on", "1/9"], "fit_on: got '1/9'; expected"),
        ("batch,rows,context,ms\n1,1,10,3\n", ["--model", "gpt-9"], "model: got 'gpt-9'"),
        ("batch,rows,context,ms\n1,1,10,3\n", ["--hardware", "B9"], "hardware: got 'B9'"),
        ("batch,rows,context,ms\n1,1,10,3\n", ["--out", "/no/such/c.json"], "out: got '/no/such"),
    ],
)
def test_what_is_refused(
    text: str, more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "steps.csv", tmp_path / "calibration.json"
    path.write_text(text)
    assert main(["roofline", "fit", str(path), *ASKED, "--out", str(out), *more]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_share_that_is_none_is_refused_before_anything_runs(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["roofline", "fit", str(points), *ASKED, "--out", "c.json", "--fit-on", "3"]
    assert main(command) == 2
    assert "fit_on: got '3'; expected a share" in capsys.readouterr().err
