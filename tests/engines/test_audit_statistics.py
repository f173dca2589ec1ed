"""The laws and tests that the audit computes itself, held against scipy and against draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from paceline.engines.audit.statistics import (
    Cells,
    ChiSquare,
    chi2_limit,
    chi2_tail,
    g_test,
    noncentral_tail,
    score_test,
    shift_found,
)

DEGREES = (1, 2, 5, 20, 100)


@pytest.mark.parametrize("df", DEGREES)
def test_tails_are_scipys(df: int) -> None:
    for x in (0.0, 0.1, 1.0, 5.0, 20.0, 60.0, 200.0):
        assert chi2_tail(x, df) == pytest.approx(chi2.sf(x, df), rel=1e-9, abs=1e-14)
        for shift in (0.5, 10.0, 80.0):
            expected = ncx2.sf(x, df, shift)
            assert noncentral_tail(x, df, shift) == pytest.approx(expected, abs=1e-9)
    for alpha in (0.05, 1e-4):
        assert chi2_limit(alpha, df) == pytest.approx(chi2.isf(alpha, df), rel=1e-9)


@pytest.mark.parametrize("df", DEGREES)
def test_the_shift_found_has_its_power(df: int) -> None:
    shift = shift_found(1e-4, df, 0.9)
    assert ncx2.sf(chi2.isf(1e-4, df), df, shift) == pytest.approx(0.9, abs=1e-6)


LAW = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])


def drawn(law: np.ndarray, samples: int, times: int) -> list[np.ndarray]:
    return list(np.random.default_rng(3).multinomial(samples, law, times))


def test_g_has_its_level_where_the_law_is_right() -> None:
    p_values = [g_test(counts.tolist(), LAW.tolist()).p for counts in drawn(LAW, 400, 4000)]
    for level in (0.5, 0.1, 0.01):
        share = np.mean(np.array(p_values) < level)
        assert share == pytest.approx(level, abs=4 * np.sqrt(level / 4000))


def test_g_pools_what_is_rare() -> None:
    tail = [1e-4] * 300
    law = [0.97, *tail]
    tested = g_test([970, *[0] * 299, 30], law)
    assert tested.df == 1 and tested.p > 0.9


def test_a_bias_of_the_stated_size_is_found_as_often_as_stated() -> None:
    """A bias from one half of the bins to the other, which is where it hides best."""
    samples, alpha = 2000, 1e-3
    size = g_test(drawn(LAW, samples, 1)[0].tolist(), LAW.tolist()).bias_found(alpha)
    assert size is not None
    biased = LAW.copy()
    biased[0] -= size * 0.8
    biased[3] -= size * 0.2
    biased[1] += size * 0.6
    biased[2] += size * 0.4
    found = [g_test(c.tolist(), LAW.tolist()).p < alpha for c in drawn(biased, samples, 500)]
    assert np.mean(found) >= 0.88


def cells_of(laws: np.ndarray, biased: np.ndarray, rng: np.random.Generator) -> Cells:
    chosen = (rng.random((len(laws), 1)) > np.cumsum(biased, axis=1)).sum(axis=1)
    observed = np.bincount(chosen, minlength=laws.shape[1]).astype(float)
    covariance = np.diag(laws.sum(axis=0)) - laws.T @ laws
    return Cells(observed, laws.sum(axis=0), covariance, len(laws))


def test_the_score_test_has_its_level_and_its_power_with_a_law_for_each_draw() -> None:
    rng = np.random.default_rng(4)
    laws = rng.dirichlet(LAW * 5, 3000)
    good = [score_test(cells_of(laws, laws, rng)).p for _ in range(2000)]
    for level in (0.5, 0.1, 0.01):
        assert np.mean(np.array(good) < level) == pytest.approx(level, abs=0.05 * level + 0.01)
    alpha = 1e-3
    size = score_test(cells_of(laws, laws, rng)).bias_found(alpha)
    assert size is not None
    biased, moved = laws.copy(), np.minimum(size, laws[:, 0])
    biased[:, 0] -= moved
    biased[:, 1] += moved
    found = [score_test(cells_of(laws, biased, rng)).p < alpha for _ in range(200)]
    assert np.mean(found) >= 0.85


def test_a_test_without_draws_finds_nothing() -> None:
    empty = ChiSquare.total([])
    assert empty.p == 1.0 and empty.bias_found(0.01) is None
