"""A cohort and its label."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort

PART = st.text(min_size=1, max_size=20)


@given(PART, PART, PART, PART)
def test_a_label_gives_its_cohort_back(model: str, app: str, language: str, region: str) -> None:
    cohort = Cohort(model, app, language, region)
    assert Cohort.parse(cohort.label) == cohort
    assert cohort.label.count("|") == 3


def test_a_plain_label_reads_as_it_is_written() -> None:
    assert Cohort("Qwen3-8B", "chat", "de", "eu").label == "Qwen3-8B|chat|de|eu"
    assert Cohort("m").label == "m|none|und|none"
    assert Cohort("a|b%7C").label.startswith("a%7Cb%257C|")


@pytest.mark.parametrize("label", ["", "m", "m|a|b", "m|a|b|c|d", "m||de|eu"])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cohort.*model\|app\|language\|region"):
        Cohort.parse(label)


def test_a_cohort_matches_the_parts_that_are_asked_for() -> None:
    cohort = Cohort("m", "chat", "de", "eu")
    assert cohort.matches({})
    assert cohort.matches({"app": "chat", "region": "eu"})
    assert not cohort.matches({"app": "chat", "language": "en"})


def test_rare_cohorts_of_a_model_are_one() -> None:
    assert Cohort.pooled("m").is_pooled
    assert Cohort.pooled("m") != Cohort.pooled("n")
    assert not Cohort("m", "other").is_pooled
