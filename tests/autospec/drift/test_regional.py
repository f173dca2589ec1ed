"""The regional test: drafters of their own only where they pay and a joint one does not do."""

from __future__ import annotations

import pytest

from paceline.autospec.drift import regional_advice
from paceline.autospec.policy import RegionalPolicy
from paceline.core import InvalidRequest

ROUNDS = {"eu": 30.0, "us": 60.0, "asia": 10.0}
LIVE = {"eu": 4.0, "us": 4.0, "asia": 4.0}


def test_a_large_gain_for_many_rounds_that_no_joint_drafter_has() -> None:
    advice = regional_advice(ROUNDS, LIVE, {"eu": 4.6, "us": 4.1}, {"eu": 4.2}, RegionalPolicy())
    assert advice.cohorts == ("eu",) and advice.share == pytest.approx(0.3)
    assert advice.recovered == pytest.approx(1 / 3)
    assert "15.0% for 30% of the rounds, and one joint drafter has 33%" in advice.why


@pytest.mark.parametrize(
    ("special", "joint", "why"),
    [
        ({"eu": 4.2}, {"eu": 4.0}, "The largest gain is 5.0%"),
        ({"asia": 6.0}, {"asia": 4.0}, "for 10% of the rounds; 20% are needed"),
        ({"eu": 4.6}, {"eu": 4.5}, "One joint drafter has 83% of the gain"),
        ({"eu": 4.6}, {}, "Train and score one drafter for all these cohorts first"),
        ({}, {}, "The largest gain is 0.0%"),
    ],
)
def test_why_not(special: dict[str, float], joint: dict[str, float], why: str) -> None:
    advice = regional_advice(ROUNDS, LIVE, special, joint, RegionalPolicy())
    assert advice.cohorts == () and why in advice.why


def test_unknown_cohorts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"special\.mars"):
        regional_advice(ROUNDS, LIVE, {"mars": 9.0}, {}, RegionalPolicy())
    with pytest.raises(InvalidRequest, match=r"live\.eu"):
        regional_advice(ROUNDS, {}, {"eu": 9.0}, {}, RegionalPolicy())
