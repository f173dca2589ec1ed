"""The state of a canary: sums of each arm in each step, small enough to be written after each look.

It holds all that the verdict depends on. Read again after a crash, it gives the same decisions;
requests that were counted already are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import model_validator

from paceline.autospec.policy import CanaryPolicy
from paceline.autospec.sums import MOMENTS, BoolArray, FloatArray, moments
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import Document

METRICS = ("tokens_per_round", "tpot", "ttft", "errors", "invalid")
SHORTEST_TTFT = 1e-4  # seconds; a logarithm needs one above zero


class ArmSums(Document):
    """Six sums of each metric over the requests of one arm in one step: see `autospec.sums`."""

    tokens_per_round: list[float] = about("draft and bonus tokens, by rounds", list)
    tpot: list[float] = about("seconds by tokens, after the first one where that is known", list)
    ttft: list[float] = about("logarithm of the time to first token", list)
    errors: list[float] = about("failed requests", list)
    invalid: list[float] = about("answers that are not valid under their schema", list)

    @model_validator(mode="after")
    def _check(self) -> ArmSums:
        for metric in METRICS:
            if len(getattr(self, metric)) not in (0, MOMENTS):
                value = getattr(self, metric)
                raise InvalidRequest(metric, value, f"{MOMENTS} sums, or none")
        return self

    def of(self, metric: str) -> FloatArray:
        """Return the sums of a metric, [6]."""
        return np.array(getattr(self, metric) or [0.0] * MOMENTS)

    def with_requests(self, values: dict[str, FloatArray]) -> ArmSums:
        """Return the sums with others added."""
        return ArmSums(**{m: (self.of(m) + values[m]).tolist() for m in METRICS})


class CanaryStepSums(Document):
    """The arms of one step."""

    percent: float = about("share of the requests that the canary gets")
    canary: ArmSums = about("requests of the new drafter", ArmSums)
    live: ArmSums = about("requests of the live one", ArmSums)


class CanaryState(Document):
    """A canary under way. Times are seconds since the epoch."""

    drafter: str = about("the new drafter")
    live: str = about("the live one")
    began: float = about("when its first step began")
    step_began: float = about("when the present step began")
    through: float = about("requests that ended until then are counted")
    steps: list[CanaryStepSums] = about("steps so far; the last one is the present")
    ended: str = about("pass or fail, once it is over", "")

    @property
    def percent(self) -> float:
        """The share of the requests that the canary gets now."""
        return self.steps[-1].percent


@dataclass(frozen=True, slots=True)
class CanaryRequests:
    """Finished requests of both arms, as columns of equal length.

    time        when the request ended, seconds since the epoch
    is_canary   whether the new drafter had it
    accepted, rounds  draft tokens that stand, and rounds, those without a draft among them: a
                drafter that drafts more often gains by it
    tokens      output tokens; `total` and `ttft` are seconds; `ttft` is NaN of an answer that came
                at once, whose TPOT is then all of its seconds by its tokens
    failed      whether it ended with an error
    valid       1 or 0 for an answer under a schema, NaN for others
    """

    time: FloatArray
    is_canary: BoolArray
    accepted: FloatArray
    rounds: FloatArray
    tokens: FloatArray
    ttft: FloatArray
    total: FloatArray
    failed: BoolArray
    valid: FloatArray

    def sums(self, chosen: BoolArray) -> dict[str, FloatArray]:
        """Return the sums of each metric over the chosen requests."""
        good = chosen & ~self.failed
        drafted = good & (self.rounds > 0)
        bound = good & ~np.isnan(self.valid)
        first = ~np.isnan(self.ttft)
        long = good & (self.tokens > first) & ~np.isnan(self.total)
        log = np.log(np.maximum(self.ttft, SHORTEST_TTFT))
        after = self.total - np.where(first, self.ttft, 0.0)
        pairs = {
            "tokens_per_round": (drafted, self.rounds + self.accepted, self.rounds),
            "tpot": (long, after, self.tokens - first),
            "ttft": (good & first, log, np.ones_like(log)),
            "errors": (chosen, self.failed.astype(float), np.ones_like(log)),
            "invalid": (bound, 1 - self.valid, np.ones_like(log)),
        }
        return {m: moments(x[rows], y[rows]).sum(1) for m, (rows, x, y) in pairs.items()}


def begun(drafter: str, live: str, now: float, policy: CanaryPolicy) -> CanaryState:
    """Return the state of a canary that begins with the first step."""
    first = CanaryStepSums(percent=policy.steps[0])
    return CanaryState(
        drafter=drafter, live=live, began=now, step_began=now, through=now, steps=[first]
    )


def observed(state: CanaryState, requests: CanaryRequests) -> CanaryState:
    """Return the state with requests counted; those that it has counted already are passed over.

    They belong to the present step, and end in the order of calls.
    """
    new = requests.time > state.through
    if not new.any() or state.ended:
        return state
    step = state.steps[-1]
    added = CanaryStepSums(
        percent=step.percent,
        canary=step.canary.with_requests(requests.sums(new & requests.is_canary)),
        live=step.live.with_requests(requests.sums(new & ~requests.is_canary)),
    )
    through = float(requests.time[new].max())
    return state.model_copy(update={"steps": [*state.steps[:-1], added], "through": through})
