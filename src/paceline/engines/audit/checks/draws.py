"""Sampled tokens beside the law of the reference at each place: the tests of a sampler."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.engines.answers import AnsweredRound
from paceline.engines.audit.reference import TOP, ScoredToken
from paceline.engines.audit.statistics import Cells, ChiSquare, Vector, g_test, score_test

EDGES = (0, 1, 2, 4, 8, TOP)  # ranks: the likeliest, the second, 3-4, 5-8, 9-20, and all others
BINS = len(EDGES)


@dataclass(frozen=True, slots=True)
class Draw:
    """An answer at T = 1 with the reference's scores of its tokens. `rounds` where the engine tells
    them."""

    probe: int
    scored: Sequence[ScoredToken]
    rounds: Sequence[AnsweredRound] | None = None


class Place(NamedTuple):
    """A token's place in its answer: what may be known before the token is drawn."""

    position: int
    before: ScoredToken | None
    in_round: int | None


Group = Callable[[Place], int | None]


class RankCounts:
    """Counts of ranks, for each group of places, beside what the laws expect.

    `chosen` has the group of each token.
    """

    def __init__(self, groups: int, chosen: Sequence[int], tokens: Sequence[ScoredToken]) -> None:
        self.groups, self.samples = groups, len(tokens)
        self.observed, self.expected = np.zeros((2, groups, BINS))
        self.covariance = np.zeros((groups, BINS, BINS))
        of_token, bins, laws = np.array(chosen), rank_bins(tokens), rank_laws(tokens)
        for group in range(groups):
            here = of_token == group
            self.observed[group] = np.bincount(bins[here], minlength=BINS)
            self.expected[group] = laws[here].sum(axis=0)
            self.covariance[group] = np.diag(self.expected[group]) - laws[here].T @ laws[here]

    def test(self) -> ChiSquare:
        """Test all groups at once; each has its own laws."""
        return ChiSquare.total(self._test_of(group) for group in range(self.groups))

    def _test_of(self, group: int) -> ChiSquare:
        observed, samples = self.observed[group], int(self.observed[group].sum())
        return score_test(Cells(observed, self.expected[group], self.covariance[group], samples))

    @property
    def shifts(self) -> list[float]:
        """By how much the share of each rank differs from the expected one."""
        difference = (self.observed - self.expected).sum(axis=0)
        return [float(value) for value in difference / max(1, self.samples)]


def rank_bins(tokens: Sequence[ScoredToken]) -> NDArray[np.intp]:
    """Return the bin of each token's rank."""
    return np.searchsorted(EDGES, [token.rank for token in tokens], side="right") - 1


def rank_laws(tokens: Sequence[ScoredToken]) -> Vector:
    """Return the probability of each bin of ranks at each token's place, [tokens, BINS]."""
    logprobs = np.full((len(tokens), TOP), -np.inf)
    for row, token in zip(logprobs, tokens, strict=True):
        row[: len(token.top)] = [logprob for _, logprob in token.top]
    laws = np.add.reduceat(np.exp(logprobs), EDGES[:-1], axis=1)
    laws = np.column_stack((laws, np.maximum(0.0, 1.0 - laws.sum(axis=1))))
    shares: Vector = laws / laws.sum(axis=1, keepdims=True)
    return shares


def ranks(draws: Sequence[Draw], groups: int, group: Group) -> RankCounts:
    """Count ranks of all tokens after the first of each answer, which no draft reaches."""
    chosen: list[int] = []
    tokens: list[ScoredToken] = []
    for draw in draws:
        in_round = _places_in_rounds(draw)
        for position, token in enumerate(draw.scored[1:], 1):
            place = Place(position, draw.scored[position - 1], in_round.get(position))
            in_group = group(place)
            if in_group is not None:
                chosen.append(in_group)
                tokens.append(token)
    return RankCounts(groups, chosen, tokens)


def everywhere(place: Place) -> int:
    """Put all places into one group."""
    return 0


def by_token_before(place: Place) -> int:
    """Tell places after a likeliest token from others. Noise that is used twice shows here."""
    return int(place.before is not None and place.before.rank > 0)


def by_place_in_round(place: Place) -> int | None:
    """Tell the first token of a round from those that come after accepted drafts."""
    return None if place.in_round is None else min(1, place.in_round)


def _places_in_rounds(draw: Draw) -> dict[int, int]:
    """Return the place in its round of each token. Whether a token has that place was settled
    before it was drawn."""
    return {
        round.position + place: place
        for round in draw.rounds or ()
        for place in range(round.accepted + 1)
    }


def first_tokens(draws: Sequence[Draw]) -> ChiSquare:
    """Test the first tokens of answers by their ids, for each prompt; no draft reaches them."""
    by_probe: dict[int, list[ScoredToken]] = defaultdict(list)
    for draw in draws:
        if draw.scored:
            by_probe[draw.probe].append(draw.scored[0])
    return ChiSquare.total(
        token_test([token.token for token in tokens], tokens[0]) for tokens in by_probe.values()
    )


def token_test(tokens: Sequence[int], scored: ScoredToken) -> ChiSquare:
    """Test tokens that were drawn from one law, that of the place of `scored`."""
    law = {token: float(np.exp(logprob)) for token, logprob in scored.top}
    counts = Counter(tokens)
    observed = [counts[token] for token in law]
    rest = max(0.0, 1 - sum(law.values()))
    return g_test([*observed, len(tokens) - sum(observed)], [*law.values(), rest])


UNLIKELY = 0.01
WINDOWS = ((1, 16), (16, 48), (48, 128), (128, 1 << 30))


def worst_window(draws: Sequence[Draw]) -> str | None:
    """Say where in the answers the tokens differ most from their law; None where nowhere."""

    def window(place: Place) -> int:
        return next(i for i, (low, high) in enumerate(WINDOWS) if low <= place.position < high)

    def inside(number: int) -> Group:
        return lambda place: 0 if window(place) == number else None

    tests = [ranks(draws, 1, inside(number)).test() for number in range(len(WINDOWS))]
    worst = min(range(len(WINDOWS)), key=lambda number: tests[number].p)
    low, high = WINDOWS[worst]
    return None if tests[worst].p > UNLIKELY else f"tokens {low + 1} to {min(high, 10**6)}"
