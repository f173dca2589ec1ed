"""Acceptance models: the expected-length table, what is conditional, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from paceline.core import InvalidRequest
from paceline.roofline.acceptance import (
    BetaGeometric,
    Geometric,
    Profile,
    acceptance_of,
    of_length,
)
from paceline.roofline.scenario.lines import acceptance_of_line
from tests.roofline.golden import variance

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 10, 15, 16]
TABLE = {
    0.50: [1.5, 1.75, 1.875, 1.938, 1.969, 1.992, 1.996, 2, 2, 2],
    0.60: [1.6, 1.96, 2.176, 2.306, 2.383, 2.458, 2.475, 2.491, 2.499, 2.5],
    0.70: [1.7, 2.19, 2.533, 2.773, 2.941, 3.141, 3.199, 3.267, 3.322, 3.326],
    0.75: [1.75, 2.312, 2.734, 3.051, 3.288, 3.6, 3.7, 3.831, 3.96, 3.97],
    0.80: [1.8, 2.44, 2.952, 3.362, 3.689, 4.161, 4.329, 4.571, 4.859, 4.887],
    0.85: [1.85, 2.572, 3.187, 3.709, 4.152, 4.85, 5.123, 5.551, 6.172, 6.246],
    0.89: [1.89, 2.682, 3.387, 4.014, 4.573, 5.512, 5.906, 6.568, 7.682, 7.837],
    0.90: [1.9, 2.71, 3.439, 4.095, 4.686, 5.695, 6.126, 6.862, 8.147, 8.332],
    0.95: [1.95, 2.852, 3.71, 4.524, 5.298, 6.732, 7.395, 8.624, 11.197, 11.638],
}
# Qwen3.6-35B-A3B on SPEED-Bench: unconditional survival of a DFlash and of an MTP drafter
DFLASH = [.772, .565, .42, .323, .256, .208, .17, .141,
          .12, .103, .089, .078, .068, .059, .051]  # fmt: skip
MTP = [0.779, 0.583, 0.444, 0.349, 0.279, 0.226, 0.185, 0.155]


@pytest.mark.parametrize("alpha", TABLE)
def test_expected_length_table(alpha: float) -> None:
    found = [Geometric(alpha).expected_length(length) for length in LENGTHS]
    assert found == pytest.approx(TABLE[alpha], abs=1e-3)


@pytest.mark.parametrize("alpha", [0.01, 0.3, 0.75, 0.89, 0.999])
@pytest.mark.parametrize("length", [1, 3, 16])
def test_an_acceptance_length_gives_its_alpha_back(alpha: float, length: int) -> None:
    al = Geometric(alpha).expected_length(length)
    assert of_length(al, length).alpha == pytest.approx(alpha, abs=1e-9)


def test_the_ends_of_the_range_of_acceptance_lengths() -> None:
    assert of_length(1, 7).expected_length(7) == pytest.approx(1)
    assert of_length(8, 7).expected_length(7) == pytest.approx(8)


def test_measured_profiles() -> None:
    dflash, mtp = Profile.of_unconditional(DFLASH), Profile.of_unconditional(MTP)
    assert dflash.expected_length(15) == pytest.approx(4.42, abs=0.005)
    assert mtp.expected_length(8) == pytest.approx(4.00, abs=0.005)
    conditional = [0.78, 0.75, 0.76, 0.79, 0.80, 0.81, 0.82, 0.84]
    assert mtp.conditional(8) == pytest.approx(conditional, abs=0.006)
    again = Profile.of_conditional(mtp.conditional(8).tolist())
    assert again.survival(8) == pytest.approx(MTP)


def test_commits_of_a_geometric_drafter() -> None:
    shares = Geometric(0.75).commit_probabilities(3)
    assert shares == pytest.approx([0.25, 0.1875, 0.140625, 0.421875])
    mean = sum(n * share for n, share in enumerate(shares, start=1))
    assert mean == pytest.approx(Geometric(0.75).expected_length(3))
    drawn = np.random.default_rng(0).choice(np.arange(1, 5), p=shares, size=200_000)
    assert variance(Geometric(0.75), 3) == pytest.approx(drawn.var(), rel=0.01)


def test_a_draft_of_nothing_commits_one_token() -> None:
    acceptance = Geometric(0.9)
    assert acceptance.expected_length(0) == 1
    assert acceptance.commit_probabilities(0).tolist() == [1]
    assert variance(acceptance, 0) == 0


def test_a_beta_geometric_fit_meets_both_points_and_rises_with_depth() -> None:
    found = BetaGeometric.fit(0.772, 4.42, 15)
    assert found.survival(1)[0] == pytest.approx(0.772)
    assert found.expected_length(15) == pytest.approx(4.42)
    rates = found.conditional(15)
    assert all(after > before for before, after in pairwise(rates))
    single = of_length(4.42, 15)
    assert abs(found.survival(15) - DFLASH).max() < abs(single.survival(15) - DFLASH).max()


def test_a_beta_of_great_a_and_b_is_a_single_alpha() -> None:
    mixed = BetaGeometric(0.8e6, 0.2e6)
    assert mixed.survival(10) == pytest.approx(Geometric(0.8).survival(10), rel=1e-4)


def test_a_trace_of_equal_drafts_is_its_own_histogram() -> None:
    trace = Profile.of_rounds((0, 1, 3, 3, 2, 0, 1, 3), 3)
    assert trace.expected_length(3) == pytest.approx(1 + 13 / 8)
    assert trace.survival(3) == pytest.approx([6 / 8, 4 / 8, 3 / 8])


def test_short_drafts_of_a_trace_tell_nothing_of_later_positions() -> None:
    rng = np.random.default_rng(1)
    drafted = rng.integers(1, 8, size=40_000)
    lengths = np.minimum(rng.geometric(1 - 0.8, size=drafted.size) - 1, drafted)
    trace = Profile.of_rounds(lengths.tolist(), drafted.tolist())
    assert trace.survival(7) == pytest.approx(Geometric(0.8).survival(7), abs=0.02)


def test_positions_that_no_round_reached_are_unknown_and_those_after_a_zero_are_zero() -> None:
    assert Profile.of_rounds((1, 1), (1, 1)).depth == 1
    assert Profile.of_rounds((0, 0), (4, 4)).survival(4).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "length", "al"),
    [
        ("alpha=0.8", 4, 3.3616),
        ("al=3.5,draft_length=7", 7, 3.5),
        ("conditional=0.8,0.5", 2, 2.2),
        ("unconditional=0.8, 0.5", 2, 2.3),
        ("first=0.772,al=4.42,draft_length=15", 15, 4.42),
        ("beta=1,1", 2, 1 + 1 / 2 + 1 / 3),
        ("accepted=0,2,drafted=2", 2, 2),
    ],
)
def test_as_users_write_it(text: str, length: int, al: float) -> None:
    assert acceptance_of(acceptance_of_line(text)).expected_length(length) == pytest.approx(al)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, "acceptance: got {}; expected alpha; or al"),
        ({"alpha": 0.8, "al": 3}, "expected alpha; or al"),
        ({"alpha": 1.2}, "alpha: got 1.2; expected a probability from 0 to 1"),
        ({"alpha": "x"}, "alpha: got 'x'"),
        ({"beta": None}, "acceptance: got {'beta': null}; expected alpha; or al"),
        ({"al": 9, "draft_length": 7}, "al: got 9.0; expected from 1 to 8"),
        ({"unconditional": [0.5, 0.6]}, "position 2 does. Are they conditional?"),
        ({"conditional": 0.5}, "conditional: got 0.5; expected a list"),
        ({"conditional": [0.5, -1]}, "conditional[1]: got -1"),
        ({"beta": [1]}, "beta: got [1]; expected two numbers"),
        ({"beta": [0, 1]}, "beta a: got 0.0; expected a number above 0"),
        ({"first": 0.9, "al": 2, "draft_length": 7}, "al: got 2.0; expected above 5.69"),
        ({"accepted": [3], "drafted": 2}, "accepted: got 3"),
        ({"accepted": [1, 1], "drafted": [1, 1, 1]}, "drafted: got 3; expected as many as"),
        ({"accepted": [], "drafted": 2}, "at least one round"),
        (
            {"accepted": [1], "drafted": [1.5]},
            "drafted[0]: got 1.5; expected a whole number",
        ),
        ({"accepted": [1], "drafted": [None]}, "drafted[0]: got null; expected a whole number"),
        ({"accepted": [1], "drafted": [[1]]}, "drafted[0]: got [1]; expected a whole number"),
        ({"accepted": [1.5, 1], "drafted": [2, 2]}, "accepted[0]: got 1.5"),
        ({"accepted": [1], "drafted": []}, "drafted: got 0; expected as many as"),
    ],
)
def test_what_is_refused(stated: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        acceptance_of(stated)
    assert said in str(error.value)


def test_a_draft_deeper_than_what_is_known_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="draft_length: got 9; expected at most 8"):
        Profile.of_unconditional(MTP).expected_length(9)


@pytest.mark.parametrize("text", ["0.8", "alpha=0.8,alpha=0.9", "alpha=0.8,0.9", "=3"])
def test_lines_that_are_no_pairs_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="acceptance: got"):
        acceptance_of(acceptance_of_line(text))
