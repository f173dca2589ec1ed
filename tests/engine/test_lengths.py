"""Draft lengths that follow the cost: long where rows are free, none where they cost too much."""

from __future__ import annotations

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.budget import StepCost
from paceline.engine.lengths import ThroughputLengths
from paceline.engine.scheduler import Scheduled

FREE = StepCost([1, 64], [1.0, 1.0])
LINEAR = StepCost([1, 64], [1.0, 64.0])
KNEE = StepCost([1, 16, 32], [1.0, 1.0, 2.0])  # free up to 16 rows, then a sixteenth each


def entries(count: int, draft: int) -> list[Scheduled]:
    made = []
    for index in range(count):
        request = Request(id=f"r{index}", prompt_ids=[1], params=SamplingParams(), drafter="d")
        made.append(Scheduled(request, 0, 1, draft_room=draft, draft=[7] * draft))
    return made


def test_free_rows_are_all_used_and_costly_ones_are_not() -> None:
    (batch,) = [entries(2, 8)]
    sure = [[0.9] * 8] * 2
    assert ThroughputLengths(FREE).verify_lengths(batch, sure, rows=2) == [8, 8]
    assert ThroughputLengths(LINEAR).verify_lengths(batch, [[0.3] * 8] * 2, rows=2) == [0, 0]


def test_the_likelier_draft_gets_the_rows() -> None:
    batch = entries(2, 12)
    lengths = ThroughputLengths(KNEE)
    sure, unsure = lengths.verify_lengths(batch, [[0.95] * 12, [0.3] * 12], rows=2)
    assert sure > unsure and 2 + sure + unsure <= 16


def test_drafts_shrink_as_the_batch_grows() -> None:
    kept = []
    for count in (1, 4, 16, 32):
        batch = entries(count, 8)
        lengths = ThroughputLengths(KNEE).verify_lengths(batch, [[0.6] * 8] * count, rows=count)
        kept.append(sum(lengths) / count)
    assert kept == sorted(kept, reverse=True) and kept[0] == 8 and kept[-1] == 0


def test_drafts_that_keep_failing_stop_and_are_tried_again_later() -> None:
    (entry,) = entries(1, 4)
    lengths = ThroughputLengths(StepCost([1, 8], [1.0, 3.4]))
    history = []
    for _ in range(120):
        entry.draft = [7] * 4
        (kept,) = lengths.verify_lengths([entry], [[0.5] * 4], rows=1)
        history.append(kept)
        del entry.draft[kept:]
        if kept:
            lengths.observe(entry, accepted=0)
    assert history[0] > 0
    tried = [round_ for round_, kept in enumerate(history) if kept]
    assert len(tried) < 30, "it went on drafting what nobody accepts"
    assert tried[-1] > 60, "it never tried again"


def test_drafts_that_stand_grow() -> None:
    (entry,) = entries(1, 8)
    lengths = ThroughputLengths(StepCost([1, 16], [1.0, 2.5]))
    first = lengths.verify_lengths([entry], [[0.6] * 8], rows=1)[0]
    for _ in range(10):
        entry.draft = [7] * 8
        lengths.observe(entry, accepted=8)
    assert lengths.verify_lengths([entry], [[0.6] * 8], rows=1)[0] > first


def test_a_drafter_that_costs_more_than_it_brings_is_not_asked() -> None:
    batch = entries(1, 6)
    lengths = ThroughputLengths(KNEE)
    assert lengths.draft_lengths(batch) == [6]  # nothing is known of its cost yet
    lengths.timed("d", 1, 0.2)
    assert lengths.draft_lengths(batch)[0] > 0
    lengths.timed("d", 1, 30.0)
    assert lengths.draft_lengths(batch) == [0]


def test_the_model_cost_is_the_optimum_of_the_same_sum() -> None:
    """Against brute force over all pairs of lengths."""
    batch = entries(2, 5)
    confidence = [[0.9, 0.8, 0.7, 0.6, 0.5], [0.6, 0.9, 0.9, 0.2, 0.9]]
    got = ThroughputLengths(LINEAR_THEN).verify_lengths(batch, confidence, rows=2)

    def rate(lengths: tuple[int, int]) -> float:
        tokens = 2.0
        for row, length in zip(confidence, lengths, strict=True):
            survival = 1.0
            for p in row[:length]:
                survival *= p
                tokens += survival
        return tokens / LINEAR_THEN(2 + sum(lengths))

    best = max((rate((a, b)), (a, b)) for a in range(6) for b in range(6))
    assert rate((got[0], got[1])) == pytest.approx(best[0])


LINEAR_THEN = StepCost([1, 4, 16], [1.0, 1.2, 4.0])
