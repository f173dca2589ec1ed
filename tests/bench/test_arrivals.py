"""Arrivals that `paceline bench --record` writes, and reading them back as events to play."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.arrivals import write_arrivals
from paceline.bench.paired import Pair
from paceline.bench.prompts import Prompt
from paceline.bench.record import Answer
from paceline.core import InvalidRequest
from paceline.roofline.recorded import read_arrivals


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    prompt = Prompt(name="rivers", kind="plain", messages=({"role": "user", "content": "hi"},))
    plain = Answer(started=5.0, token_ids=[1, 2, 3], arrivals=[5.02, 5.03, 5.04])
    fast = Answer(started=9.0, token_ids=[1, 2, 3], arrivals=[9.02, 9.035, 9.035])
    fast.draft_rounds, fast.accepted = 1, 1
    path = tmp_path / "run.jsonl"
    write_arrivals(path, [Pair(prompt, off=[plain], on=[fast])])
    return path


def test_bursts_are_read_back_as_they_arrived(recorded: Path) -> None:
    off, on = read_arrivals(recorded)
    assert (off["prompt"], off["speculation"], on["speculation"]) == ("rivers", "off", "on")
    assert [(e.t_ms, e.tokens) for e in off["events"]] == [(20, 1), (30, 1), (40, 1)]
    assert [(e.t_ms, e.tokens) for e in on["events"]] == [(20, 1), (35, 2)]
    assert (on["draft_rounds"], on["accepted"]) == (1, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "recorded, line 2: got"),
        ({"arrivals_ms": []}, "recorded, line 2, arrivals_ms: got []"),
        ({"arrivals_ms": [3, 2]}, "never falling"),
        ({"arrivals_ms": [-3]}, "recorded, line 2, arrivals_ms: got -3"),
    ],
)
def test_a_line_that_is_none_is_named(change: dict[str, object], said: str, recorded: Path) -> None:
    first, second = recorded.read_text().splitlines()
    recorded.write_text(f"{first}\n{json.dumps({**json.loads(second), **change})}\n")
    with pytest.raises(InvalidRequest) as error:
        read_arrivals(recorded)
    assert said in str(error.value)
