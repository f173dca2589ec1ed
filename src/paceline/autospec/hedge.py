"""Hedge: how to share requests among live drafters, when each can be scored on every trace.

The target's own tokens say what any drafter would have got, so all drafters are scored on all
requests: full information, and no request is spent on exploring. Weights follow
w ∝ exp(rate · Σ reward) (Freund & Schapire 1997), with rewards between 0 and 1 and old evidence
forgotten bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.autospec.policy import RoutingPolicy
from paceline.autospec.sums import FloatArray
from paceline.core import InvalidRequest


@dataclass(frozen=True, slots=True)
class DrafterEvidence:
    """One batch of evidence about drafters in a cohort: the AL that each has, or would have had.

    source      where it is from, in words: "scores of 120 traces", "live requests of Monday"
    al          by drafter; a live drafter's batch may lack those that did not draft
    ceiling     γ + 1, the largest AL possible
    """

    source: str
    al: Mapping[str, float]
    ceiling: float


@dataclass(frozen=True, slots=True)
class RoutingChoice:
    """How a cohort's requests are shared. `shares` sum to 1; `why` says so in a sentence."""

    cohort: str
    shares: Mapping[str, float]
    best: str
    why: str


def expected_length(acceptance: Sequence[float]) -> float:
    """Return the expected AL, bonus token included, of conditional acceptance rates by position:
    1 + Σ Π α."""
    return 1.0 + float(np.cumprod(np.asarray(acceptance, float)).sum())


def choose_drafters(
    cohort: str, drafters: Sequence[str], evidence: Sequence[DrafterEvidence], policy: RoutingPolicy
) -> RoutingChoice:
    """Share a cohort's requests among drafters by all evidence, oldest first.

    Where a batch says nothing about a drafter, that one gets what the others got on average.
    """
    if not drafters:
        raise InvalidRequest("drafters", list(drafters), "at least one drafter")
    rewards = [_rewards(batch, drafters) for batch in evidence]
    weights = _weights(rewards, len(drafters), policy)
    kept = np.where(weights >= min(policy.least_share, weights.max()), weights, 0.0)
    kept = kept / kept.sum()
    order = np.argsort(-kept, kind="stable").tolist()
    best = drafters[order[0]]
    shares = {drafters[index]: float(kept[index]) for index in order if kept[index] > 0}
    return RoutingChoice(cohort, shares, best, _reason(cohort, drafters, order, evidence, kept))


def _rewards(batch: DrafterEvidence, drafters: Sequence[str]) -> FloatArray:
    """Return (AL − 1) ÷ γ of each drafter."""
    if batch.ceiling <= 1:
        raise InvalidRequest("ceiling", batch.ceiling, "γ + 1, more than 1")
    al = np.array([batch.al.get(name, np.nan) for name in drafters])
    al = np.where(np.isnan(al), np.nanmean(al) if np.isfinite(al).any() else 1.0, al)
    rewards: FloatArray = np.clip((al - 1) / (batch.ceiling - 1), 0.0, 1.0)
    return rewards


def _weights(rewards: Sequence[FloatArray], count: int, policy: RoutingPolicy) -> FloatArray:
    total = np.zeros(count)
    for reward in rewards:
        total = total * (1 - 1 / policy.memory) + reward
    weights = np.exp(policy.rate * (total - total.max()))
    shares: FloatArray = weights / weights.sum()
    return shares


def _reason(
    cohort: str,
    drafters: Sequence[str],
    order: Sequence[int],
    evidence: Sequence[DrafterEvidence],
    shares: FloatArray,
) -> str:
    best = drafters[order[0]]
    if not evidence:
        return f"{cohort}: nothing is known about its drafters yet, so they share its requests."
    if len(drafters) == 1:
        return f"{cohort}: {best} is its only drafter."
    other = drafters[order[1]]
    means = {
        name: [batch.al[name] for batch in evidence if name in batch.al] for name in (best, other)
    }
    told = [
        f"{name} {np.mean(values):.2f}" if values else f"{name} unknown"
        for name, values in means.items()
    ]
    sources = ", ".join(dict.fromkeys(batch.source for batch in evidence[-3:]))
    return (
        f"{cohort}: {best} gets {shares[order[0]]:.0%} of its requests; AL by {len(evidence)} "
        f"batches of evidence (last {sources}): {told[0]}, {told[1]}."
    )
