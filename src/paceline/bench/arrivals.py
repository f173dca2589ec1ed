"""When the tokens of every measured answer arrived, as JSONL: a run to play again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.bench.load.answers import MeasuredAnswer
from paceline.bench.load.paired import Pair
from paceline.roofline.recorded import ARRIVALS


def write_arrivals(path: Path, pairs: Sequence[Pair]) -> None:
    """One line an answer: `speculation` off or on, `run`, and `arrivals_ms`, in which tokens of one
    burst share a time. The page's timing plays it."""
    lines = [json.dumps(line) for pair in pairs for line in _lines(pair)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _lines(pair: Pair) -> Iterator[dict[str, Any]]:
    for speculation, answers in (("off", pair.off), ("on", pair.on)):
        for run, answer in enumerate(answers):
            yield {
                "format": ARRIVALS,
                "prompt": pair.prompt.name,
                "speculation": speculation,
                "run": run,
                "arrivals_ms": _since_sent(answer),
                "draft_rounds": answer.draft_rounds,
                "accepted": answer.accepted,
            }


def _since_sent(answer: MeasuredAnswer) -> list[float]:
    return [round(1e3 * (at - answer.started), 3) for at in answer.arrivals]
