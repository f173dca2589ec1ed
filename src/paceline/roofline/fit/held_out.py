"""A fit to some of the points, and its errors at the other ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from paceline.core import InvalidRequest
from paceline.roofline.fit.learn import Fit, fit_together
from paceline.roofline.fit.points import MeasuredStep
from paceline.roofline.fit.step_times import Case, StepTimes


@dataclass(frozen=True)
class Judged:
    """`points` in the order of their size; `seen` tells the ones that the fit had; `predicted` is
    seconds of every point."""

    case: Case
    fit: Fit
    points: tuple[MeasuredStep, ...]
    seen: tuple[bool, ...]
    predicted: tuple[float, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted ÷ measured − 1."""
        pairs = zip(self.predicted, self.points, strict=True)
        return tuple(seconds / point.seconds - 1 for seconds, point in pairs)

    @property
    def held_out_errors(self) -> tuple[float, ...]:
        pairs = zip(self.errors, self.seen, strict=True)
        return tuple(error for error, seen in pairs if not seen)

    def as_json(self) -> dict[str, Any]:
        """The calibration that `--calibration` reads, with its origin."""
        held_out = self.held_out_errors
        return {
            **self.fit.to_dict(),
            "model": self.case.deployment.architecture.name,
            "hardware": self.case.deployment.hardware.name,
            "tensor_parallel": self.case.deployment.options.tensor_parallel,
            "held_out": {
                "points": len(held_out),
                **dict(zip(SUMMARY, summary(held_out), strict=True)),
            }
            if held_out
            else None,
        }


SUMMARY = ("median_error", "high_error")


def summary(errors: Sequence[float]) -> tuple[float, float]:
    """Return the median of the absolute errors, and the bound of nine of ten."""
    sizes = np.abs(errors)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


def fit_and_judge(case: Case, share: Fraction) -> Judged:
    """Fit to `share` of the points, spread evenly over their sizes. Raises InvalidRequest."""
    points = sorted(case.points, key=lambda p: (p.batch * p.rows, p.batch, p.context, p.seconds))
    seen = tuple(_chosen(index, share) for index in range(len(points)))
    if not any(seen):
        expected = f"a share of which {len(points)} points have at least one"
        raise InvalidRequest("fit_on", str(share), expected)
    kept = tuple(point for point, chosen in zip(points, seen, strict=True) if chosen)
    learned = fit_together([replace(case, points=kept)])
    predicted = StepTimes([replace(case, points=points)])(
        learned.calibration, learned.draft_cost or 0.0
    )
    return Judged(case, learned, tuple(points), seen, tuple(predicted.tolist()))


def _chosen(index: int, share: Fraction) -> bool:
    """Choose as many of the first n points as n × share, rounded to the nearest."""
    half = Fraction(1, 2)
    return math.floor((index + 1) * share + half) > math.floor(index * share + half)
