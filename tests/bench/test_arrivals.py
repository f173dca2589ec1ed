"""Arrivals that `paceline bench --record` writes, and what the page plays of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.load.paired import Pair, write_arrivals
from paceline.bench.prompts import BenchPrompt
from paceline.core import InvalidRequest
from paceline.server.ui_timing import timing


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    prompt = BenchPrompt(name="rivers", kind="plain", messages=({"role": "user", "content": "hi"},))
    plain = MeasuredAnswer(started=5.0, token_ids=[1, 2, 3], arrivals=[5.02, 5.03, 5.04])
    fast = MeasuredAnswer(started=9.0, token_ids=[1, 2, 3], arrivals=[9.02, 9.035, 9.035])
    fast.drafted = DraftCounts(1, 1, 1)
    path = tmp_path / "run.jsonl"
    write_arrivals(path, [Pair(prompt, off=[plain], on=[fast])])
    return path


def lines_of(recorded: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recorded.read_text().splitlines()]


def test_bursts_are_played_as_they_arrived(recorded: Path) -> None:
    off, on = lines_of(recorded)
    assert (off["prompt"], off["speculation"], on["speculation"]) == ("rivers", "off", "on")
    assert (on["draft_rounds"], on["accepted"]) == (1, 1)
    played = timing({"recorded": [off, on]})
    assert [(e["t_ms"], e["tokens"]) for e in played["ar"]] == [(20, 1), (30, 1), (40, 1)]
    assert [(e["t_ms"], e["tokens"]) for e in played["speculative"]] == [(20, 1), (35, 2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "recorded[1]: got"),
        ({"arrivals_ms": []}, "arrivals_ms.speculative: got []"),
        ({"arrivals_ms": [3, 2]}, "never fall"),
        ({"arrivals_ms": [-3]}, "arrivals_ms.speculative: got -3"),
    ],
)
def test_a_line_that_is_none_is_named(change: dict[str, object], said: str, recorded: Path) -> None:
    first, second = lines_of(recorded)
    with pytest.raises(InvalidRequest) as error:
        timing({"recorded": [first, {**second, **change}]})
    assert said in str(error.value)
