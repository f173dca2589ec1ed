"""The verdict on a canary, and the step that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from paceline.autospec.canary.sequence import compare_arms
from paceline.autospec.canary.state import METRICS, CanaryState, CanaryStepSums
from paceline.autospec.policy import CanaryPolicy
from paceline.autospec.sums import FloatArray, N

DAY = 86_400.0
MAIN = METRICS[0]
# of alpha (Bonferroni): no metric fails a good drafter more often than its part of it
PARTS = {"tokens_per_round": 0.7, "tpot": 0.15, "ttft": 0.05, "errors": 0.05, "invalid": 0.05}
NAMES = {
    "tokens_per_round": "tokens per round",
    "tpot": "TPOT",
    "ttft": "time to first token",
    "errors": "failed requests",
    "invalid": "answers invalid under their schema",
}


class CanaryVerdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class CanaryAction(StrEnum):
    ADVANCE = "advance"  # to the next step
    PROMOTE = "promote"  # it becomes the live drafter
    ROLL_BACK = "roll back"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """A metric of both arms. `worse` is how much worse the canary is, and `low` to `high` where
    that surely lies: relative to the live drafter, or a difference of shares. `allowed` is how much
    worse it may be. None while there are too few requests."""

    metric: str
    canary: float | None
    live: float | None
    worse: float | None
    low: float | None
    high: float | None
    allowed: float
    requests: int

    @property
    def is_surely_worse(self) -> bool:
        """Tokens per round may not be lower at all; guards may be worse by what is allowed."""
        least = 0.0 if self.metric == MAIN else self.allowed
        return self.low is not None and self.low > least

    @property
    def is_surely_good(self) -> bool:
        return self.high is not None and self.high < self.allowed


@dataclass(frozen=True, slots=True)
class CanaryJudgement:
    """The verdict with its numbers and its reasons in sentences."""

    verdict: CanaryVerdict
    action: CanaryAction
    comparisons: tuple[MetricComparison, ...]
    why: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def judge(state: CanaryState, now: float, policy: CanaryPolicy) -> CanaryJudgement:
    """Judge a canary at any time and as often as one likes."""
    compared = tuple(_compare(state, metric, policy) for metric in METRICS)
    requests = int(sum(step.canary.of("errors")[N] for step in state.steps))
    worse = [item for item in compared if item.is_surely_worse]
    if worse and requests >= policy.least_requests:
        why = tuple(f"{_describe(item)}; {_limit(item)} is allowed." for item in worse)
        return CanaryJudgement(CanaryVerdict.FAIL, CanaryAction.ROLL_BACK, compared, why)
    missing = list(_missing(state, compared, now, policy))
    told = tuple(_describe(item) + "." for item in compared if item.worse is not None)
    if not missing:
        last = len(state.steps) + 1 >= len(policy.steps)
        action = CanaryAction.PROMOTE if last else CanaryAction.ADVANCE
        return CanaryJudgement(CanaryVerdict.PASS, action, compared, told)
    if now - state.began > policy.longest_days * DAY:
        missing.append(
            f"It has run for more than {policy.longest_days:g} days: promote or withdraw."
        )
    why = (*missing, *told)
    return CanaryJudgement(CanaryVerdict.INCONCLUSIVE, CanaryAction.HOLD, compared, why)


def advanced(
    state: CanaryState, judgement: CanaryJudgement, now: float, policy: CanaryPolicy
) -> CanaryState:
    """Return the state after acting on a judgement: the next step, or the end."""
    if judgement.action is CanaryAction.ROLL_BACK:
        return state.model_copy(update={"ended": str(CanaryVerdict.FAIL)})
    if judgement.action is CanaryAction.PROMOTE:
        return state.model_copy(update={"ended": str(CanaryVerdict.PASS)})
    if judgement.action is CanaryAction.ADVANCE:
        step = CanaryStepSums(percent=policy.steps[len(state.steps)])
        return state.model_copy(update={"steps": [*state.steps, step], "step_began": now})
    return state


def _missing(
    state: CanaryState, compared: tuple[MetricComparison, ...], now: float, policy: CanaryPolicy
) -> Iterator[str]:
    """Yield what the present step lacks before the next one may begin."""
    step = state.steps[-1]
    requests = int(step.canary.of("errors")[N])
    hours, whole = (now - state.step_began) / 3600, (now - state.began) / 3600
    if requests < policy.least_requests:
        yield f"{requests} canary requests in this step; {policy.least_requests} are needed."
    if hours < policy.least_hours:
        yield f"This step is {hours:.1f} hours old; {policy.least_hours:g} are needed."
    if len(state.steps) + 1 < len(policy.steps):
        return
    if whole < policy.cycle_hours:
        yield f"The canary is {whole:.1f} hours old; {policy.cycle_hours:g} are a daily cycle."
    for item in compared[:2]:
        if not item.is_surely_good:
            name = NAMES[item.metric]
            if item.high is None:
                yield f"There are too few requests to compare {name}."
            else:
                yield (
                    f"To promote it, {name} must surely be less than {item.allowed:.1%} worse; "
                    f"{item.high:.1%} is possible."
                )


def _compare(state: CanaryState, metric: str, policy: CanaryPolicy) -> MetricComparison:
    arms = [
        np.stack([getattr(step, arm).of(metric) for step in state.steps], 1)
        for arm in ("canary", "live")
    ]
    shown = compare_arms(arms[0], arms[1], relative=False)
    is_share = metric in ("errors", "invalid")
    if is_share:
        arms = [_smoothed(arm) for arm in arms]
    relative = metric in (MAIN, "tpot")
    limits = {
        MAIN: policy.guard,
        "tpot": policy.tpot,
        "ttft": math.log1p(policy.ttft),
        "errors": policy.errors,
        "invalid": policy.invalid,
    }
    allowed = limits[metric]
    result = compare_arms(arms[0], arms[1], relative=relative)
    bounds = result.bounds(PARTS[metric] * policy.alpha, policy.tuned_requests)
    count = int(sum(step.canary.of(metric)[N] for step in state.steps))
    plain = shown.difference if is_share else result.difference
    worse, low, high = (float(value) for value in (plain, *bounds))
    if not (math.isfinite(worse) and math.isfinite(high)):
        return MetricComparison(metric, None, None, None, None, None, allowed, count)
    if metric == MAIN:
        worse, low, high = -worse, -high, -low
    means = [float(shown.canary), float(shown.live)]
    canary, live = map(math.exp, means) if metric == "ttft" else means
    return MetricComparison(metric, canary, live, worse, low, high, allowed, count)


def _smoothed(sums: FloatArray) -> FloatArray:
    """Return the sums of a share with half a case of either kind added: without any case, the
    variance would be zero."""
    return sums + np.where(sums[N] > 0, np.array([1, 0.5, 1, 0.5, 0.5, 1])[:, None], 0.0)


def _describe(item: MetricComparison) -> str:
    assert item.worse is not None and item.low is not None and item.high is not None
    name = NAMES[item.metric][0].upper() + NAMES[item.metric][1:]
    if item.metric in ("errors", "invalid"):
        unit = f"{item.canary:.2%} against {item.live:.2%}"
    elif item.metric == MAIN:
        unit = f"{item.canary:.2f} against {item.live:.2f}"
    else:
        unit = f"{1e3 * (item.canary or 0):.1f} ms against {1e3 * (item.live or 0):.1f} ms"
    return (
        f"{name} {unit}: {_worse(item.worse)} (surely between {_worse(item.low)} and "
        f"{_worse(item.high)})"
    )


def _worse(value: float) -> str:
    return f"{abs(value):.1%} {'worse' if value > 0 else 'better'}"


def _limit(item: MetricComparison) -> str:
    return "nothing" if item.metric == MAIN else f"{item.allowed:.1%}"
