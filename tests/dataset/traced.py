"""Requests and rounds for tests of traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core.rounds import Round, StepInfo
from paceline.dataset.traces.folder import Partition, day_of, write_part
from paceline.dataset.traces.records import (
    REQUESTS,
    ROUNDS,
    RequestTrace,
    RoundTrace,
    Traced,
    arrow_module,
    batch,
)

NOON = 1_772_366_400.0  # 2026-03-01 12:00 UTC
DAY = 86_400.0
STEP = StepInfo(NOON, 2, 10, 0.001, 0.02)


def traced(id: str, *rounds: tuple[int, int], **fields: Any) -> Traced:
    """Return an answer whose rounds drafted and accepted so many tokens."""
    made, position = [], 0
    for drafted, accepted in rounds:
        made.append(Round(position, drafted, accepted, step=STEP))
        position += accepted + 1
    counts = {
        "rounds": len(rounds),
        "draft_rounds": sum(drafted > 0 for drafted, _ in rounds),
        "drafted": sum(drafted for drafted, _ in rounds),
        "accepted": sum(accepted for _, accepted in rounds),
        "output_tokens": position,
    }
    cohort = {"model": "m", "app": "shop", "language": "de", "region": "eu"}
    row = RequestTrace(id=id, **{"time": NOON, **cohort, **counts, **fields})
    return row, [RoundTrace.of(id, round) for round in made]


def with_ids(id: str, *rounds: tuple[int, int], **fields: Any) -> Traced:
    """Return an answer with token ids for a day."""
    ids = {"prompt_ids": [7, 8, 9], "output_ids": [70_001, 70_002], "forced_places": [1]}
    ids |= {"scope": "shared"}
    return traced(id, *rounds, **{**ids, "expires": fields.get("time", NOON) + DAY, **fields})


def write(folder: Path, *answers: Traced) -> None:
    """Write answers of one day and app, as the writer does."""
    arrow = arrow_module()
    row = answers[0][0]
    for kind, rows in (
        (ROUNDS, [round for _, rounds in answers for round in rounds]),
        (REQUESTS, [request for request, _ in answers]),
    ):
        place = Partition(kind, day_of(row.time), row.app).path(folder)
        write_part(place, arrow.Table.from_batches([batch(kind, rows)]))
