"""Learn a calibration from measured step times, and judge it at the other ones.

The points decide which unknowns are learned (`search.py`). The others keep their
identity, or the value of the unknown that they are tied to, and `Fit.not_identified` says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from paceline.core.errors import InvalidRequest
from paceline.roofline.device import IDEAL, Calibration
from paceline.roofline.fit.points import MeasuredStep
from paceline.roofline.fit.search import UNKNOWNS, Candidate, Case, Search, StepTimes


@dataclass(frozen=True)
class Fit:
    """A calibration and how well it explains its points.

    draft_cost       share of the target's step that each drafted token takes, where points include
                     drafting; else None
    deviations       standard error by learned parameter, as a share of its value
    not_identified   by parameter, why the points do not tell it and what it is taken as
    predicted        seconds, by point
    errors           predicted / measured − 1, by point
    """

    calibration: Calibration
    draft_cost: float | None
    deviations: dict[str, float]
    not_identified: dict[str, str]
    predicted: tuple[float, ...]
    errors: tuple[float, ...] = field(repr=False)

    @property
    def median_error(self) -> float:
        """Median of the absolute relative errors at the points fitted to."""
        return summary(self.errors)[0]

    @property
    def high_error(self) -> float:
        """The absolute relative error that nine of ten of the points stay below."""
        return summary(self.errors)[1]

    def to_dict(self) -> dict[str, object]:
        """Plain JSON; `Calibration.from_file` reads it back."""
        return {
            "calibration": self.calibration.model_dump(),
            "draft_cost": self.draft_cost,
            "deviations": self.deviations,
            "not_identified": self.not_identified,
            **_errors_as_json(self.errors),
        }


@dataclass(frozen=True)
class Judged:
    """A fit to some of the points. `points` are in the order of their size; `seen` tells the ones
    that the fit had; `predicted` is seconds of every point."""

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

    def as_json(self) -> dict[str, object]:
        """The calibration that `--calibration` reads, with its origin."""
        deployment, held_out = self.case.deployment, self.held_out_errors
        return {
            **self.fit.to_dict(),
            "model": deployment.architecture.name,
            "hardware": deployment.hardware.name,
            "tensor_parallel": deployment.options.tensor_parallel,
            "held_out": _errors_as_json(held_out) if held_out else None,
        }


def summary(errors: Sequence[float]) -> tuple[float, float]:
    """Return the median of the absolute errors, and the bound of nine of ten."""
    sizes = np.abs(errors)
    return float(np.median(sizes)), float(np.quantile(sizes, 0.9))


def _errors_as_json(errors: Sequence[float]) -> dict[str, float]:
    median, high = summary(errors)
    return {"points": len(errors), "median_error": median, "high_error": high}


def fit_and_judge(case: Case, share: Fraction) -> Judged:
    """Fit to `share` of the points, spread evenly over their sizes. Raises InvalidRequest."""
    points = sorted(case.points, key=lambda p: (p.batch * p.rows, p.batch, p.context, p.seconds))
    # of the first n points n × share are seen, rounded to the nearest
    counts = [math.floor(n * share + Fraction(1, 2)) for n in range(len(points) + 1)]
    seen = tuple(after > before for before, after in pairwise(counts))
    if not any(seen):
        expected = f"a share of which {len(points)} points have at least one"
        raise InvalidRequest("fit_on", str(share), expected)
    kept = tuple(point for point, chosen in zip(points, seen, strict=True) if chosen)
    learned = fit_together([replace(case, points=kept)])
    times = StepTimes([replace(case, points=points)])
    predicted = times(learned.calibration, learned.draft_cost or 0.0)
    return Judged(case, learned, tuple(points), seen, tuple(predicted.tolist()))


def fit_together(cases: Sequence[Case], *, parameters: Sequence[str] | None = None) -> Fit:
    """Fit one calibration to the cases of one engine: least squares of relative errors.

    `parameters` fixes which unknowns are fitted (names of UNKNOWNS); by default the points decide,
    and `row_tile` is tried too. Raises InvalidRequest for no points, an unknown name, or more
    parameters than points.
    """
    measured = [point.seconds for case in cases for point in case.points]
    if not measured:
        raise InvalidRequest("points", [], "at least one measured step")
    for name in parameters or ():
        if name not in UNKNOWNS:
            raise InvalidRequest("parameters", name, f"names of {', '.join(UNKNOWNS)}")
    if parameters is not None and len(parameters) > len(measured):
        expected = f"at most {len(measured)}: one per point"
        raise InvalidRequest("parameters", len(parameters), expected)
    search = Search(np.array(measured), StepTimes(cases))
    chosen = search.run() if parameters is None else search.best(tuple(parameters), 1)
    values = search.values(chosen.names, chosen.solution.values)
    draft_cost = values.pop("draft_cost", 0.0) if "draft_cost" in search.names else None
    calibration = Calibration(row_tile=chosen.tile, **values)
    predicted = search.times(calibration, draft_cost or 0.0)
    return Fit(
        calibration=calibration,
        draft_cost=draft_cost,
        deviations=_deviations(chosen),
        not_identified=_not_identified(search, chosen, values),
        predicted=tuple(predicted.tolist()),
        errors=tuple((predicted / search.measured - 1.0).tolist()),
    )


def _deviations(chosen: Candidate) -> dict[str, float]:
    deviations = dict(zip(chosen.names, chosen.solution.deviations().tolist(), strict=True))
    for name, value in chosen.solved.items():
        if not UNKNOWNS[name].logarithmic:
            deviations[name] /= max(abs(value), 1e-12)
    return deviations


def _not_identified(
    search: Search, chosen: Candidate, values: Mapping[str, float]
) -> dict[str, str]:
    """Say of each unknown that was not learned why not, and what it is taken as."""
    reasons = {}
    for name in search.names:
        if name in chosen.names:
            continue
        here = values.get(name, 0.0 if name == "draft_cost" else getattr(IDEAL, name))
        tied = UNKNOWNS[name].tied
        taken = f"the same as {tied}" if tied in values else f"{here:g}"
        reasons[name] = f"{search.why_not(name, chosen, here)}; taken as {taken}"
    return reasons
