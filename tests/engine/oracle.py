"""Exact enumeration: every outcome of every random number, over a tiny random process.

Only the last step, from a key to a number, is replaced by one that walks through all outcomes. A
number that is looked at again under the same key keeps what was learnt of it, so reuse shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

VOCAB, GAMMA, LENGTH = 2, 2, 3  # a rejection commits one token: up to 3 rounds
EXACT, BIASED = 1e-6, 1e-3  # logits are float32: an exact law comes out to a few 1e-8


def process(seed: int) -> dict[tuple[int, ...], np.ndarray]:
    rng = np.random.default_rng(seed)
    contexts = [
        c for n in range(LENGTH + GAMMA + 1) for c in itertools.product(range(VOCAB), repeat=n)
    ]
    return {c: rng.dirichlet(np.full(VOCAB, 0.8)) for c in contexts}


P, Q = process(1), process(2)


class Outcomes:
    """Walks through every outcome of a program that draws keyed numbers."""

    def __init__(self) -> None:
        self.script: list[int] = []

    def paths(self, program: Callable[[], tuple[int, ...]]) -> Iterator[tuple[float, tuple]]:
        while True:
            self.weight, self.step, self.open = 1.0, 0, []
            self.known: dict[tuple, tuple[float, float]] = {}
            self.races: dict[tuple, tuple[torch.Tensor, int]] = {}
            result = program()
            yield self.weight, result
            while self.open and self.script[-1] + 1 >= self.open[-1]:
                self.script.pop()
                self.open.pop()
            if not self.script:
                return
            self.script[-1] += 1

    def split(self, key: tuple, edges: list[float]) -> int:
        """Which of the intervals between `edges` the uniform number named `key` lies in."""
        low, high = self.known.get(key, (0.0, 1.0))
        parts = []
        for index, (a, b) in enumerate(itertools.pairwise(edges)):
            a, b = max(a, low), min(b, high)
            if b > a:
                parts.append((index, a, b))
        if self.step == len(self.script):
            self.script.append(0)
        index, a, b = parts[self.script[self.step]]
        self.open.append(len(parts))
        self.step += 1
        self.weight *= (b - a) / (high - low)
        self.known[key] = (a, b)
        return index

    def uniform(self, seed, *, choice, position, round_start=0, role=0):
        return _Number(self, (seed, choice, position, round_start, role))

    def gumbel_argmax(self, logits, *, inv_temperature, seed, choice, position, round_start=0,
                      role=0, threshold=-np.inf, tie_id=2**31 - 1):  # fmt: skip
        kept = logits.double().clone()
        ids = torch.arange(len(kept))
        kept[~((logits > threshold) | ((logits == threshold) & (ids <= tie_id)))] = -np.inf
        probs = torch.softmax(kept * inv_temperature, -1)
        edges = [0.0, *torch.cumsum(probs, 0).tolist()]
        edges[-1] = 1.0
        key = (seed, choice, position, round_start, role)
        # The same noise over fewer of the same tokens: the winner stays where it still takes part,
        # and otherwise says nothing of who is best among the others (which is why Gumbel noise
        # draws without replacement, Kool et al. arXiv 1903.06059).
        whole = self.races.get(key)
        if whole is not None and _fewer(kept, whole[0]):
            winner = whole[1]
            if kept[winner] > -np.inf:
                return winner
            return self.split((*key, "without", winner), edges)
        winner = self.split(key, edges)
        self.races[key] = (kept, winner)
        return winner


def _fewer(some: torch.Tensor, all_: torch.Tensor) -> bool:
    out = some == -np.inf
    return bool(out.any()) and bool((some == all_)[~out].all())


class _Number:
    """A keyed uniform number that is only ever compared."""

    def __init__(self, outcomes: Outcomes, key: tuple) -> None:
        self.outcomes, self.key = outcomes, key

    def __lt__(self, bound: float) -> bool:
        bound = min(max(bound, 0.0), 1.0)
        return self.outcomes.split(self.key, [0.0, bound, 1.0]) == 0


def error(
    measured: dict[tuple[int, ...], float],
    allowed: Callable[[tuple[int, ...]], int] | None = None,
) -> float:
    """Total variation distance to the target's own law, of what a grammar allows."""

    def chance(context: tuple[int, ...], token: int) -> float:
        bits = -1 if allowed is None else allowed(context)
        kept = [P[context][t] * (bits >> t & 1) for t in range(VOCAB)]
        return kept[token] / sum(kept)

    distance = 0.0
    for tokens in itertools.product(range(VOCAB), repeat=LENGTH):
        truth = np.prod([chance(tokens[:i], tokens[i]) for i in range(LENGTH)])
        distance += abs(truth - measured.get(tokens, 0.0))
    assert abs(sum(measured.values()) - 1) < 1e-9, "not every outcome was counted"
    return distance / 2


def logits(law: dict, context: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.log(law[context])).float()


RULES = pytest.mark.parametrize("rule", ["match", "token", "block"])
RULES_WITH_Q = pytest.mark.parametrize("rule", ["token", "block"])
