"""Times, acceptance and text of one measured answer."""

from __future__ import annotations

import math

import pytest

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer


def answer(arrivals: list[float], **counts: DraftCounts) -> MeasuredAnswer:
    return MeasuredAnswer(
        started=1.0, token_ids=list(range(len(arrivals))), arrivals=arrivals, **counts
    )


def test_tpot_leaves_the_first_token_out_and_counts_bursts() -> None:
    burst = answer([1.5, 2.0, 2.0, 2.0])
    assert burst.ttft == 0.5
    assert burst.tpot() == pytest.approx(0.5 / 3)
    assert burst.tpot(2) == pytest.approx(0.5)
    assert math.isnan(answer([1.5]).tpot())


def test_acceptance_length_includes_the_bonus_token() -> None:
    assert answer([1.1] * 8, drafted=DraftCounts(2, 8, 5)).acceptance_length == 3.5
    assert answer([1.1] * 8).acceptance_length is None
