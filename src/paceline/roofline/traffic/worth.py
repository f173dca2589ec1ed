"""The shape of a workload, and the worth of a faster decode to it from end to end.

Speculation makes decoding faster and nothing else: not the prompt, not the queue. So the share of a
request's time that is decoding bounds the gain (Amdahl), and concurrency decides how large the
batches are that drafts have to pay in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

WORTH = 1.05  # below so much from end to end, nobody would notice
SHARES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of a size, in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        p50, p90, p99 = (float(value) for value in np.percentile(values, SHARES))
        return cls(float(np.mean(values)), p50, p90, p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficProfile:
    """The shape of a workload. Times are seconds, means over requests.

    decode_share   of the time of all requests together, first to last token ÷ arrival to last
                   token; None where the source does not say when first tokens came
    concurrency    mean requests in the system: arrivals per second × mean latency (Little's law)
    decoding       mean requests that decode at once while any does: the batch of a drafting step
    context        mean tokens in a request's cache over its decode steps
    acceptance_length   incl. bonus, where the server speculates already
    """

    source: str
    requests: int
    prompt_tokens: Spread
    output_tokens: Spread
    latency: float
    ttft: float | None
    tpot: float | None
    decode_share: float | None
    concurrency: float
    decoding: float
    context: float
    acceptance_length: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def batch(self) -> int:
        return max(1, round(self.decoding))

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "batch": self.batch}


@dataclass(frozen=True, slots=True)
class Worth:
    """The worth of a drafter to a workload. `gain` and `limit` are from end to end: with this
    drafter, and with decoding that takes no time. `reasons` say why the drafter is not worth it;
    there are none where it is."""

    decode_speedup: float
    gain: float
    limit: float
    worth_it: bool
    reasons: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "limit": None if math.isinf(self.limit) else self.limit}


def amdahl(share: float, speedup: float) -> float:
    """The speedup of a whole of which a `share` of the time gets `speedup` times as fast."""
    return 1 / ((1 - share) + share / speedup)


def judge(traffic: TrafficProfile, draft_length: int, speedup: float) -> Worth:
    """Judge a drafter that is best at `draft_length`, where decoding is `speedup` times as fast as
    AR. Where the share of decoding is unknown, all time counts as decoding: the gain is then an
    upper bound."""
    share = 1.0 if traffic.decode_share is None else traffic.decode_share
    gain = amdahl(share, speedup)
    limit = 1 / (1 - share) if share < 1 else math.inf
    reasons = []
    if gain < WORTH:
        if limit < WORTH:
            reasons.append(
                f"prompts and waiting dominate: {share:.0%} of the time is decoding, so that no "
                f"drafter could gain more than {limit:.2f}×"
            )
        if draft_length == 0:
            reasons.append(
                f"drafts do not pay with {traffic.batch} requests decoding at once: the best "
                "draft length is 0"
            )
        elif speedup < WORTH:
            reasons.append(f"even at its best draft length decoding is {speedup:.2f}× AR")
        if not reasons:
            reasons.append(
                f"decoding gets {speedup:.2f}× as fast, but is only {share:.0%} of the time"
            )
    return Worth(speedup, gain, limit, not reasons, tuple(reasons))
