"""Verification rules: which draft tokens stand, and what follows them.

`match` is the default: the target's token at each row is drawn first, and a draft token stands when
it equals it, so the output is a function of the target and the seed alone. `token` (Leviathan et
al. arXiv 2211.17192, Chen et al. arXiv 2302.01318) and `block` (Sun et al. arXiv 2403.10444) are
opt-in: same distribution, another stream, more accepted when the draft was sampled and its q is
known. `synthetic` accepts by plan, for measuring on random weights; it is not lossless.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from paceline.core import InvalidRequest, SparseRow, Verdict
from paceline.engine.sampler import one_hot


class Rows(Protocol):
    """The target as a rule sees it; `sampler.TargetRows` is the real one, an oracle may be
    another."""

    position: int
    noise: Any

    def token(self, row: int) -> int: ...
    def probs(self, row: int) -> torch.Tensor: ...


class Verifier(Protocol):
    name: str
    lossless: bool
    needs_q: bool

    def verify(self, rows: Rows, draft: Sequence[int], q: list[Any] | None) -> Verdict: ...


class MatchVerifier:
    """Accept while the draft equals the target's own token."""

    name, lossless, needs_q = "match", True, False

    def verify(self, rows: Rows, draft: Sequence[int], q: list[Any] | None = None) -> Verdict:
        for i, drafted in enumerate(draft):
            token = rows.token(i)
            if token != drafted:
                return Verdict(i, token)
        return Verdict(len(draft), rows.token(len(draft)))


class TokenVerifier:
    """Accept d with probability min(1, p(d)/q(d)); on rejection draw from norm(max(p - q, 0))."""

    name, lossless, needs_q = "token", True, True

    def verify(self, rows: Rows, draft: Sequence[int], q: list[Any] | None) -> Verdict:
        start, noise = rows.position, rows.noise
        for i, drafted in enumerate(draft):
            p = rows.probs(i)
            q_row = dense(None if q is None else q[i], drafted, len(p))
            ratio = _ratio(p, q_row, drafted)
            if not noise.below(ratio, round_start=start, position=start + i):
                residual = (p - q_row).clamp_(min=0)
                return Verdict(i, noise.draw(residual, round_start=start, position=start + i))
        end = len(draft)
        return Verdict(end, noise.draw(rows.probs(end), round_start=start, position=start + end))


class BlockVerifier:
    """Block verification: judge prefixes jointly, keep the longest that stands.

    With P_0 = 1, P_i = min(1, P_{i-1} p_i(d_i) / q_i(d_i)), S_i = sum_x max(P_i p_{i+1}(x) -
    q_{i+1}(x), 0): h_i = S_i / (S_i + 1 - P_i) for i < k and h_k = P_k; tau is the largest i with
    u_i < h_i; the next token is drawn from norm(max(P_tau p_{tau+1} - q_{tau+1}, 0)), or from
    p_{k+1} when all stand.
    """

    name, lossless, needs_q = "block", True, True

    def verify(self, rows: Rows, draft: Sequence[int], q: list[Any] | None) -> Verdict:
        start, noise, k = rows.position, rows.noise, len(draft)
        p = [rows.probs(i) for i in range(k)]
        q_rows = [dense(None if q is None else q[i], draft[i], len(p[i])) for i in range(k)]
        prefix = [1.0]
        for i, drafted in enumerate(draft):
            prefix.append(min(1.0, prefix[-1] * _ratio(p[i], q_rows[i], drafted)))
        accepted = 0
        for i in range(k, 0, -1):
            h = prefix[k] if i == k else self._stands(prefix[i], p[i], q_rows[i])
            if noise.below(h, round_start=start, position=start + i - 1):
                accepted = i
                break
        if accepted == k:
            weights = rows.probs(k)
        else:
            weights = (prefix[accepted] * p[accepted] - q_rows[accepted]).clamp_(min=0)
        position = start + accepted
        return Verdict(accepted, noise.draw(weights, round_start=start, position=position))

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

    def verify(self, rows: Rows, draft: Sequence[int], q: list[Any] | None = None) -> Verdict:
        start = rows.position
        for i in range(len(draft)):
            rate = self.rates[min(i, len(self.rates) - 1)]
            if not rows.noise.below(rate, round_start=start, position=start + i):
                return Verdict(i, rows.token(i))
        return Verdict(len(draft), rows.token(len(draft)))


def _ratio(p: torch.Tensor, q: torch.Tensor, drafted: int) -> float:
    """p/q of the drafted token; 0 for one that the target cannot say, also where q is 0 (its own
    rounding left it nothing): 0/0 is nan, and min(1.0, nan) is 1.0."""
    return float(p[drafted] / q[drafted]) if p[drafted] > 0 else 0.0


def dense(q_row: Any, drafted: int, vocab_size: int) -> torch.Tensor:
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
    verifiers: dict[str, type[Verifier]] = {
        v.name: v for v in (MatchVerifier, TokenVerifier, BlockVerifier)
    }
    if rule not in verifiers:
        raise InvalidRequest("rule", rule, "one of " + ", ".join([*verifiers, "synthetic"]))
    return verifiers[rule]()
