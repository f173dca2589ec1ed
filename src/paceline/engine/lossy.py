"""Lossy verification by budget: more of a draft stands, and what that changes is bounded exactly.

Ensemble verification (DIVERSE, arXiv 2604.07622): a draft x drawn from q is judged against
v = w p + (1 - w) q instead of the target's p. Accepting with probability min(1, v(x) / q(x)) and
drawing from norm(max(p - q, 0)) otherwise gives exactly v, whose total variation distance to p is
(1 - w) TV(p, q). With w = 1 - min(1, epsilon / TV(p, q)) at each token that is
min(epsilon, TV(p, q)), and the draft stands with probability 1 - TV(p, q) + min(epsilon, TV(p, q)):
no rule rejects less at that distance (Yin et al., arXiv 2411.00841). Over a text the distances add
up at most.

What the target cannot say at all, because top_k, top_p, min_p, a ban or a grammar rules it out, is
never accepted; that only brings the law closer to p. At temperature 0 the target's law is a single
token: another one stands with probability epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.core import InvalidRequest, Request, Verdict
from paceline.engine.verify import MatchVerifier, Rows, Verifier, dense


class LossyRows(Rows, Protocol):
    def prob(self, row: int, token: int) -> float: ...
    def possible(self, row: int, token: int) -> bool: ...


class EnsembleMatch:
    """The rule `match` with a budget, for drafts that count as certain (q is one-hot at x, so TV is
    1 - p(x)). The target's own token is drawn first, as ever; where it differs from the draft, the
    draft stands all the same with probability min(epsilon, TV) / TV. With epsilon 0 it is `match`,
    to the bit. For drafts that share the target's noise the distance is at most that: these differ
    from the target's token less often.
    """

    name, lossless, needs_q = "match", False, False

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def verify(self, rows: LossyRows, draft: Sequence[int], q: list[Any] | None = None) -> Verdict:
        start, used, replaced = rows.position, 0.0, 0
        for i, drafted in enumerate(draft):
            token = rows.token(i)
            distance = 1.0 - rows.prob(i, drafted)
            possible = rows.possible(i, drafted)
            if possible:
                used += min(self.epsilon, distance)
            if token == drafted:
                continue
            stands = min(1.0, self.epsilon / distance) if possible and distance > 0 else 0.0
            if not rows.noise.below(stands, round_start=start, position=start + i):
                return Verdict(i, token, used, replaced)
            replaced += 1
        return Verdict(len(draft), rows.token(len(draft)), used, replaced)


class EnsembleToken:
    """The rule `token` with a budget: sampled drafts judged by the q they were drawn from. With
    epsilon 0 it is `token`, to the bit."""

    name, lossless, needs_q = "token", False, True

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def verify(self, rows: Rows, draft: Sequence[int], q: list[Any] | None) -> Verdict:
        start, noise, used, replaced = rows.position, rows.noise, 0.0, 0
        for i, drafted in enumerate(draft):
            p = rows.probs(i)
            q_row = dense(None if q is None else q[i], drafted, len(p))
            residual = (p - q_row).clamp_(min=0)
            distance = float(residual.sum())
            biased = min(1.0, self.epsilon / distance) if distance > 0 else 0.0
            used += biased * distance
            ratio = float(p[drafted] / q_row[drafted]) if p[drafted] > 0 else 0.0
            chance = ratio + biased * (1.0 - ratio) if 0.0 < ratio < 1.0 else ratio
            if not noise.below(chance, round_start=start, position=start + i):
                token = noise.draw(residual, round_start=start, position=start + i)
                return Verdict(i, token, used, replaced)
            replaced += not noise.below(ratio, round_start=start, position=start + i)
        end = len(draft)
        token = noise.draw(rows.probs(end), round_start=start, position=start + end)
        return Verdict(end, token, used, replaced)


ENSEMBLES = {"match": EnsembleMatch, "token": EnsembleToken}
_MATCH = MatchVerifier()


def verifier_for(request: Request, rule: Verifier) -> Any:
    """The engine's `rule` as one request has it: with its budget, and at temperature 0, where all
    lossless rules are the same, `match`."""
    greedy, budget = request.params.greedy, request.speculative.lossy
    if budget:
        return (EnsembleMatch if greedy else ENSEMBLES[rule.name])(budget)
    return _MATCH if greedy and rule.lossless else rule


def check_budget(rule: str, epsilon: float) -> None:
    """Raises InvalidRequest for a budget that the server's rule cannot keep."""
    if epsilon and rule not in ENSEMBLES:
        expected = f"0: this server's rule is {rule}; a budget goes with " + " and ".join(ENSEMBLES)
        raise InvalidRequest("speculative.lossy", epsilon, expected)
