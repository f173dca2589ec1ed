"""Judges texts of T = 0 token by token: each has to be the likeliest after all before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.engines.answers import EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.reference import ScoredToken
from paceline.engines.audit.session import (
    GREEDY_TOKENS,
    LEAST_TIE,
    MOST_TIE,
    PLAIN,
    Session,
)
from paceline.engines.client import EngineRefused

ROUNDING_PROBES = 3
EXACT = 1e-6  # nats: not even a tie
UNKNOWN_ROUNDING = 0.1  # nats: about half a step of bfloat16 at a logit of 20

# Returns what is added to the logits at a place of the answer: token -> amount.
Adjust = Callable[[int], Callable[[int], float]]


class Fault(NamedTuple):
    """A token that is not the likeliest: where, how much less likely in nats, in which text."""

    name: str
    position: int
    gap: float


@dataclass(slots=True)
class JudgedText:
    """Tokens that were judged: how many, those within rounding of the likeliest, wrong ones."""

    tokens: int = 0
    ties: list[Fault] = field(default_factory=list)
    wrong: list[Fault] = field(default_factory=list)

    def add(self, name: str, position: int, gap: float, tie: float) -> None:
        self.tokens += 1
        if gap > tie:
            self.wrong.append(Fault(name, position, gap))
        elif gap > EXACT:
            self.ties.append(Fault(name, position, gap))

    @property
    def first_wrong(self) -> int | None:
        """The earliest position of a wrong token in any text, from 1."""
        return min((fault.position + 1 for fault in self.wrong), default=None)

    @property
    def worst(self) -> float:
        """The largest gap, in nats."""
        return max((fault.gap for fault in (*self.wrong, *self.ties)), default=0.0)


def judge(
    judged: JudgedText,
    name: str,
    scored: Sequence[ScoredToken],
    tie: float,
    adjust: Adjust | None = None,
) -> None:
    """Judge every token of a text. With `adjust` the likeliest token is that of adjusted logits;
    tokens beyond the likeliest TOP stay unseen then, so that a wrong token may pass."""
    for position, token in enumerate(scored):
        if adjust is None:
            judged.add(name, position, token.gap, tie)
            continue
        added = adjust(position)
        best = max(logprob + added(other) for other, logprob in token.top)
        gap = max(0.0, best - token.logprob - added(token.token))
        judged.add(name, position, gap, tie)


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """Return the first place at which two texts differ; None where they are equal. Where one ends
    inside the other, it is the place after its last token."""
    pairs = enumerate(zip(ids, others, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is None and len(ids) != len(others):
        return min(len(ids), len(others))
    return place


def rounding_cost(session: Session) -> Cost:
    """Return what rounding() uses."""
    return Cost(1, session.longest_probe + GREEDY_TOKENS + 1) * (2 * ROUNDING_PROBES)


def rounding(session: Session) -> float:
    """Return the difference in nats that is within rounding: four times the 95th percentile of
    that between log-probabilities told while decoding and those of the same text as a prompt."""
    reference, differences = session.reference, list[float]()
    for probe in session.probes[:ROUNDING_PROBES]:
        ask = EngineAsk(probe.ids, GREEDY_TOKENS, 0.0, top_logprobs=1, fields=PLAIN)
        try:
            answer = reference.ask(ask) if reference.asks else session.ask(ask)
        except EngineRefused:
            return UNKNOWN_ROUNDING  # it tells no logprobs while decoding
        scored = reference.score(probe.ids, answer.token_ids)
        told = zip(answer.logprobs, scored, strict=False)
        differences += [abs(row.chosen - token.logprob) for row, token in told]
    if not differences:
        return UNKNOWN_ROUNDING
    return float(np.clip(4 * np.quantile(differences, 0.95), LEAST_TIE, MOST_TIE))
