"""Losslessness by exact enumeration: every outcome of every random number, over several rounds.

The real rows, the real verifiers and the real keying of noise run over a tiny random process; only
the last step, from a key to a number, is replaced by one that walks through all outcomes. A number
that is looked at again under the same key keeps what was learnt of it, so reuse shows as bias.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from paceline.core import Request, SamplingParams
from paceline.engine import sampler
from paceline.engine.verify import make_verifier
from paceline.kernels import ops

VOCAB, GAMMA, LENGTH = (
    2,
    2,
    3,
)  # a rejection commits one token, so LENGTH tokens take up to 3 rounds
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
        return self.split((seed, choice, position, round_start, role), edges)


class _Number:
    """A keyed uniform number that is only ever compared."""

    def __init__(self, outcomes: Outcomes, key: tuple) -> None:
        self.outcomes, self.key = outcomes, key

    def __lt__(self, bound: float) -> bool:
        bound = min(max(bound, 0.0), 1.0)
        return self.outcomes.split(self.key, [0.0, bound, 1.0]) == 0


def law(
    outcomes: Outcomes,
    rule: str,
    *,
    sampled: bool,
    judge: Callable = lambda q, sampled: q if sampled else None,
    cut: Callable = lambda q, tokens: len(tokens),
    noise: type[sampler.Noise] = sampler.Noise,
    draft_start: Callable = lambda position: position,
) -> dict[tuple[int, ...], float]:
    """Distribution of the first LENGTH output tokens under speculation."""
    verifier = make_verifier(rule)

    def logits(context: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(np.log(P[context])).float()

    def program() -> tuple[int, ...]:
        request = Request(id="r", prompt_ids=[0], params=SamplingParams(temperature=1.0), seed=7)
        while request.output_len < LENGTH:
            start = request.position
            draft: list[int] = []
            q_rows = []
            for i in range(GAMMA):
                q = Q[(*request.output_ids, *draft)]
                q_rows.append(torch.from_numpy(q))
                if sampled:
                    token = outcomes.gumbel_argmax(
                        torch.from_numpy(np.log(q)), inv_temperature=1.0, seed=7, choice=0,
                        position=start + i, round_start=draft_start(start), role=ops.ROLE_DRAFT,
                    )  # fmt: skip
                else:
                    token = int(np.argmax(q))
                draft.append(token)
            keep = cut(q_rows, draft)
            draft, q_rows = draft[:keep], q_rows[:keep]
            contexts = [(*request.output_ids, *draft[:i]) for i in range(len(draft) + 1)]
            rows = torch.stack([logits(c) for c in contexts])
            target = sampler.TargetRows(request, rows, rows.argmax(-1).tolist(), draft)
            target.noise = noise(request.seed, request.choice)
            verdict = verifier.verify(target, draft, judge(q_rows, sampled))
            request.tokens += [*draft[: verdict.accepted], verdict.next_token]
        return tuple(request.output_ids[:LENGTH])

    total: dict[tuple[int, ...], float] = {}
    for weight, tokens in outcomes.paths(program):
        total[tokens] = total.get(tokens, 0.0) + weight
    return total


def error(measured: dict[tuple[int, ...], float]) -> float:
    """Total variation distance to the target's own law."""
    distance = 0.0
    for tokens in itertools.product(range(VOCAB), repeat=LENGTH):
        truth = np.prod([P[tokens[:i]][tokens[i]] for i in range(LENGTH)])
        distance += abs(truth - measured.get(tokens, 0.0))
    assert abs(sum(measured.values()) - 1) < 1e-9, "not every outcome was counted"
    return distance / 2


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    walker = Outcomes()
    monkeypatch.setattr(sampler.ops, "uniform", walker.uniform)
    monkeypatch.setattr(sampler.ops, "gumbel_argmax", walker.gumbel_argmax)
    return walker


@pytest.mark.parametrize("sampled", [False, True], ids=["argmax-drafts", "sampled-drafts"])
@pytest.mark.parametrize("rule", ["match", "token", "block"])
def test_rule_keeps_the_targets_law(outcomes: Outcomes, rule: str, sampled: bool) -> None:
    assert error(law(outcomes, rule, sampled=sampled)) < EXACT


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_argmax_drafts_judged_with_a_soft_q(outcomes: Outcomes, rule: str) -> None:
    biased = law(outcomes, rule, sampled=False, judge=lambda q, sampled: q)
    assert error(biased) > BIASED


def cut_on_drawn_token(q: list[torch.Tensor], tokens: list[int]) -> int:
    for i, (row, token) in enumerate(zip(q, tokens, strict=True)):
        if row[token] < 0.5:
            return i
    return len(tokens)


def cut_on_distribution(q: list[torch.Tensor], tokens: list[int]) -> int:
    for i, row in enumerate(q):
        if row.max() < 0.7:
            return i
    return len(tokens)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_a_cut_that_looks_at_the_drawn_token(outcomes: Outcomes, rule: str) -> None:
    assert error(law(outcomes, rule, sampled=True, cut=cut_on_drawn_token)) > BIASED
    assert error(law(outcomes, rule, sampled=True, cut=cut_on_distribution)) < EXACT


def test_match_is_exact_whatever_the_cut_looks_at(outcomes: Outcomes) -> None:
    assert error(law(outcomes, "match", sampled=True, cut=cut_on_drawn_token)) < EXACT


def test_control_position_keyed_block(outcomes: Outcomes) -> None:
    class PositionKeyed(sampler.Noise):
        def below(self, probability, *, round_start, position):
            return super().below(probability, round_start=0, position=position)

        def draw(self, weights, *, round_start, position):
            return super().draw(weights, round_start=0, position=position)

    biased = law(
        outcomes, "block", sampled=True, noise=PositionKeyed, draft_start=lambda position: 0
    )
    assert error(biased) > BIASED
