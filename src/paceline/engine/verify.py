"""Verification rules: which draft tokens stand, and what follows them.

`match` is the default: the target's token at each row is drawn first, and a draft token stands when
it equals it, so the output is a function of the target and the seed alone. `token` (Leviathan et
al. arXiv 2211.17192, Chen et al. arXiv 2302.01318) and `block` (Sun et al. arXiv 2403.10444) are
opt-in: same distribution, another stream, more accepted when the draft was sampled and its q is
known. `synthetic` accepts by plan, for measuring on random weights; it is not lossless.

`match` and `token` take a lossy budget epsilon for each token. Ensemble verification (DIVERSE,
arXiv 2604.07622) judges a draft x from q against v = w p + (1 - w) q instead of the target's p:
accepting with probability min(1, v(x) / q(x)) and drawing from norm(max(p - q, 0)) otherwise gives
exactly v, whose total variation distance to p is (1 - w) TV(p, q). With w = 1 - min(1, epsilon /
TV(p, q)) that is min(epsilon, TV(p, q)), and the draft stands with probability 1 - TV(p, q) +
min(epsilon, TV(p, q)): no rule rejects less at that distance (Yin et al., arXiv 2411.00841). Over a
text the distances add up at most. What the target cannot say at all, because a filter, a ban or a
grammar rules it out, is never accepted; that only brings the law closer to p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from paceline.core import InvalidRequest, Request, SparseRow, Verdict
from paceline.engine.draft import DraftRow, DraftRows
from paceline.engine.sampler import TargetRows, one_hot


class Verifier(Protocol):
    """A rule. `needs_q` says that it judges sampled drafts by the q that they were drawn from."""

    name: str
    lossless: bool
    needs_q: bool

    def verify(self, rows: TargetRows, draft: Sequence[int], q: DraftRows | None) -> Verdict: ...


class MatchVerifier:
    """Accept while the draft equals the target's own token.

    A budget `epsilon` counts the draft as certain (q is one-hot at x, so TV is 1 - p(x)): where the
    target's own token differs, the draft stands all the same with probability min(epsilon, TV) /
    TV. For drafts that share the target's noise the distance is at most that: these differ from the
    target's token less often. At temperature 0 another token stands with probability epsilon.
    """

    name, needs_q = "match", False

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon, self.lossless = epsilon, not epsilon

    def verify(self, rows: TargetRows, draft: Sequence[int], q: DraftRows | None = None) -> Verdict:
        used, replaced = 0.0, 0
        for i, drafted in enumerate(draft):
            token, stands = rows.token(i), 0.0
            if self.epsilon:
                distance = 1.0 - rows.prob(i, drafted)
                if rows.possible(i, drafted) and distance > 0:
                    used += min(self.epsilon, distance)
                    stands = min(1.0, self.epsilon / distance)
            if token == drafted:
                continue
            if not stands or not rows.noise.below(stands, i):
                return Verdict(i, token, used, replaced)
            replaced += 1
        return Verdict(len(draft), rows.token(len(draft)), used, replaced)


class TokenVerifier:
    """Accept d with probability min(1, p(d)/q(d)); on rejection draw from norm(max(p - q, 0)).

    A budget `epsilon` accepts more, by the law v of the module.
    """

    name, needs_q = "token", True

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon, self.lossless = epsilon, not epsilon

    def verify(self, rows: TargetRows, draft: Sequence[int], q: DraftRows | None) -> Verdict:
        noise, used, replaced = rows.noise, 0.0, 0
        for i, drafted in enumerate(draft):
            p = rows.probs(i)
            q_row = dense(None if q is None else q[i], drafted, len(p))
            chance = ratio = _ratio(p, q_row, drafted)
            if self.epsilon:
                distance = float((p - q_row).clamp_(min=0).sum())
                biased = min(1.0, self.epsilon / distance) if distance > 0 else 0.0
                used += biased * distance
                if 0.0 < ratio < 1.0:
                    chance = ratio + biased * (1.0 - ratio)
            if not noise.below(chance, i):
                token = noise.draw((p - q_row).clamp_(min=0), i)
                return Verdict(i, token, used, replaced)
            if self.epsilon:
                replaced += not noise.below(ratio, i)
        end = len(draft)
        return Verdict(end, noise.draw(rows.probs(end), end), used, replaced)


class BlockVerifier:
    """Block verification: judge prefixes jointly, keep the longest that stands.

    With P_0 = 1, P_i = min(1, P_{i-1} p_i(d_i) / q_i(d_i)), S_i = sum_x max(P_i p_{i+1}(x) -
    q_{i+1}(x), 0): h_i = S_i / (S_i + 1 - P_i) for i < k and h_k = P_k; tau is the largest i with
    u_i < h_i; the next token is drawn from norm(max(P_tau p_{tau+1} - q_{tau+1}, 0)), or from
    p_{k+1} when all stand.
    """

    name, lossless, needs_q = "block", True, True

    def verify(self, rows: TargetRows, draft: Sequence[int], q: DraftRows | None) -> Verdict:
        noise, k = rows.noise, len(draft)
        p = [rows.probs(i) for i in range(k)]
        q_rows = [dense(None if q is None else q[i], draft[i], len(p[i])) for i in range(k)]
        prefix = [1.0]
        for i, drafted in enumerate(draft):
            prefix.append(min(1.0, prefix[-1] * _ratio(p[i], q_rows[i], drafted)))
        accepted = 0
        for i in range(k, 0, -1):
            h = prefix[k] if i == k else self._stands(prefix[i], p[i], q_rows[i])
            if noise.below(h, i - 1):
                accepted = i
                break
        if accepted == k:
            weights = rows.probs(k)
        else:
            weights = (prefix[accepted] * p[accepted] - q_rows[accepted]).clamp_(min=0)
        return Verdict(accepted, noise.draw(weights, accepted))

    @staticmethod
    def _stands(prefix: float, p: torch.Tensor, q: torch.Tensor) -> float:
        excess = float((prefix * p - q).clamp_(min=0).sum())
        room = excess + (1 - prefix)  # in this order 1 where prefix is: such a prefix stands
        return excess / room if room > 0 else 1.0


class SyntheticVerifier:
    """Accepts position i with rate rates[i] (the last rate goes on), whatever was drafted."""

    name, lossless, needs_q = "synthetic", False, False

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = tuple(rates)

    def verify(self, rows: TargetRows, draft: Sequence[int], q: DraftRows | None = None) -> Verdict:
        for i in range(len(draft)):
            rate = self.rates[min(i, len(self.rates) - 1)]
            if not rows.noise.below(rate, i):
                return Verdict(i, rows.token(i))
        return Verdict(len(draft), rows.token(len(draft)))


def _ratio(p: torch.Tensor, q: torch.Tensor, drafted: int) -> float:
    """p/q of the drafted token; 0 for one that the target cannot say, also where q is 0 (its own
    rounding left it nothing): 0/0 is nan, and min(1.0, nan) is 1.0."""
    return float(p[drafted] / q[drafted]) if p[drafted] > 0 else 0.0


def dense(q_row: DraftRow | None, drafted: int, vocab_size: int) -> torch.Tensor:
    """A draft row as float64 [V]: one-hot for a deterministic draft, scattered for a sparse one."""
    if q_row is None:
        return one_hot(drafted, vocab_size)
    if isinstance(q_row, SparseRow):
        row = torch.zeros(vocab_size, dtype=torch.float64)
        ids, probs = torch.as_tensor(q_row.ids, dtype=torch.int64), torch.as_tensor(q_row.probs)
        row[ids.cpu()] = probs.double().cpu()
        return row
    return torch.as_tensor(q_row).double().cpu()


def make_verifier(rule: str, synthetic: Sequence[float] = ()) -> Verifier:
    """The verifier of that name. Raises InvalidRequest for an unknown rule."""
    if rule == "synthetic":
        return SyntheticVerifier(synthetic)
    verifiers: dict[str, type[Verifier]] = {**WITH_BUDGET, "block": BlockVerifier}
    if rule not in verifiers:
        raise InvalidRequest("rule", rule, "one of " + ", ".join([*verifiers, "synthetic"]))
    return verifiers[rule]()


WITH_BUDGET: dict[str, type[MatchVerifier | TokenVerifier]] = {
    "match": MatchVerifier,
    "token": TokenVerifier,
}
_MATCH = MatchVerifier()


def verifier_for(request: Request, rule: Verifier) -> Verifier:
    """The engine's `rule` as one request has it: with its budget, and at temperature 0, where all
    lossless rules are the same, `match`."""
    greedy, budget = request.params.greedy, request.speculative.lossy
    if budget:
        return (MatchVerifier if greedy else WITH_BUDGET[rule.name])(budget)
    return _MATCH if greedy and rule.lossless else rule


def matches(request: Request, rule: Verifier) -> bool:
    """Return whether verifier_for() gives a request at temperature 0 `match` without a budget."""
    return rule.lossless and not request.speculative.lossy


def check_budget(rule: str, epsilon: float) -> None:
    """Raises InvalidRequest for a budget that the server's rule cannot keep."""
    if epsilon and rule not in WITH_BUDGET:
        expected = f"0: this server's rule is {rule}; a budget goes with "
        raise InvalidRequest("speculative.lossy", epsilon, expected + " and ".join(WITH_BUDGET))
