"""`paceline drafter watch`: a run that goes on, one that has ended, and a folder that is none."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.cli import main, show
from paceline.cli.training_view import BARS, CURVE, curve
from paceline.dataset.folder_lock import LOCK, locked, writer_of
from paceline.dataset.run_log import LOG, POINTS, run_state

PHASES = {f"ms/{name}": 10.0 for name in ("target", "data", "drafter", "head", "optimiser")}


def step(number: int, **changes: float) -> dict[str, float]:
    return {
        "step": number, "loss": 9.0 - number / 10, "train/al": 1.5, "slots_per_second": 1234.0,
        "seconds_per_step": 0.05, "hours": 0.5, "hours_left": 0.25, "peak_share/all": 0.08,
        **PHASES, **changes,
    }  # fmt: skip


def score(number: int, length: float) -> dict[str, float]:
    return {
        "step": number, "held_out/shop/al": length, "held_out/shop/first": 0.5,
        "held_out/shop/position_2": 0.25, "out_of_domain/code/al": 2.0,
        "out_of_domain/code/first": 0.6, "out_of_domain/code/position_2": 0.1,
    }  # fmt: skip


def write(folder: Path, *entries: dict[str, float]) -> Path:
    folder.mkdir(exist_ok=True)
    with open(folder / LOG, "a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)
    return folder


@pytest.mark.parametrize("columns", [None, "30"])
def test_without_a_terminal_the_state_is_printed_once(
    columns: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No line is broken, however many columns the environment names."""
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    forecast = {"forecast/al": 2.5, "forecast/low": 2.4, "forecast/high": 2.75}
    foreign = {"foreign/shop/al": 1.5, "gap/shop": 0.25}
    run = write(
        tmp_path / "run", score(0, 1.0), step(10), {"step": 20, "decay_steps": 5.0}, step(20),
        {**score(20, 1.75), **forecast, **foreign, "regression/code": 0.07},
    )  # fmt: skip
    with locked(run):
        assert main(["drafter", "watch", str(run)]) == 0
    said = capsys.readouterr().out
    for words in (
        f"{run}: training; the learning rate falls",
        "step 20, 30:00 min of steps, 15:00 min left",
        "1,234 slots/s, 8% of the matmul peak",
        "50 ms: target 10, data 10, drafter 10, head 10, optimiser 10",
        f"loss 7.000 nats {BARS[-1]}{BARS[0]}",
        "AL 2.50 (2.40 to 2.75)",
        "AL fell by 7% on code",
        "production gap of shop: AL 0.25, held out minus foreign",
    ):
        assert words in said, said
    assert main(["drafter", "watch", str(run)]) == 0
    ended = capsys.readouterr().out
    assert "no process is training in this folder" in ended
    assert "left" not in ended and "forecast" not in ended
    rows = [line.split() for line in said.splitlines() if "shop, held out" in line]
    assert rows == [["shop,", "held", "out", "1.75", "1.75", "50%", "25%", f"{BARS[0]}{BARS[-1]}"]]


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drafter", "watch", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path) in said and "the folder of a run of `paceline train`" in said


def test_a_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: Any) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    monkeypatch.setattr(show, "report_console", lambda: console)
    run = write(tmp_path / "run", step(10))
    codes: list[int] = []
    command = ["drafter", "watch", str(run), "--every", "0.1"]
    watching = threading.Thread(target=lambda: codes.append(main(command)))
    with locked(run):
        watching.start()
        wait_for(out, "step 10")
        write(run, step(20))
        wait_for(out, "step 20")
        assert watching.is_alive()
    watching.join(10)
    assert codes == [0] and "no process is training in this folder" in out.getvalue()


def wait_for(out: io.StringIO, words: str) -> None:
    until = time.monotonic() + 10
    while words not in out.getvalue():
        assert time.monotonic() < until, out.getvalue()
        time.sleep(0.02)


def test_whoever_writes_to_a_folder_is_known_while_it_lives(tmp_path: Path) -> None:
    assert writer_of(tmp_path) is None
    with locked(tmp_path):
        assert writer_of(tmp_path) == os.getpid()
    assert writer_of(tmp_path) is None
    # of a process that was killed; of one that has its id now; and what is no id
    for text in (2**22 + 1, os.getpid(), 0, -1, 2**70, "x"):
        (tmp_path / LOCK).write_text(f"{text}\n")
        assert writer_of(tmp_path) is None, text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, None, 7.0], "▁█"),
        ([None], ""),
        ([0.0] * 500 + [7.0] * 500, "▁" * (CURVE // 2) + "█" * (CURVE // 2)),
    ],
)
def test_a_curve_is_as_wide_as_its_values_up_to_a_width(
    values: list[float | None], expected: str
) -> None:
    assert curve(values) == expected


def test_a_run_that_diverged_says_so_and_still_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nan = float("nan")
    run = write(
        tmp_path / "run", step(10), step(20, loss=0.0, objective=nan, grad_norm=nan),
        {**score(20, 1.5), "held_out/first/al": nan, "held_out/first/first": nan,
         "regression/first": 0.5, "gap/first": nan, "held_out/[red]/al": 1.25},
    )  # fmt: skip
    assert main(["drafter", "watch", str(run)]) == 0
    said = capsys.readouterr().out
    assert "the loss is not a finite number any more" in said and "loss – nats" in said
    assert "AL fell by 50% on first" in said and "production gap of first: AL –" in said
    assert "first, held out" in said and "[red], held out" in said
    json.dumps(run_state(run), allow_nan=False)  # as the page's answer is


def test_a_long_curve_is_thinned_to_its_last_value(tmp_path: Path) -> None:
    run = write(tmp_path / "run", *(step(n) for n in range(10 * POINTS + 5)))
    loss = run_state(run)["loss"]
    assert len(loss["step"]) <= POINTS and loss["step"][-1] == 10 * POINTS + 4
    assert len(set(b - a for a, b in pairwise(loss["step"]))) == 1


@pytest.mark.parametrize("line", ["{not json", "[1]", '{"loss": 1.0}', ""])
def test_a_broken_log_is_refused_by_its_line(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "run", step(10))
    with open(run / LOG, "a") as file:
        file.write(line + "\n")
    assert main(["drafter", "watch", str(run)]) == 2
    said = capsys.readouterr().err
    assert str(run) in said and "line 2 is none" in said
