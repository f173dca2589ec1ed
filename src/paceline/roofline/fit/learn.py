"""Learn a calibration from measured step times.

The points decide which unknowns are learned (`search.py`). Any other keeps its
identity, or the value of the unknown that it is tied to, and `Fit.not_identified` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.core.errors import InvalidRequest
from paceline.roofline.device import IDEAL, Calibration
from paceline.roofline.fit.search import UNKNOWNS, Candidate, Search
from paceline.roofline.fit.step_times import Case, StepTimes


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
        return float(np.median(np.abs(self.errors)))

    @property
    def high_error(self) -> float:
        """The absolute relative error that nine of ten of the points stay below."""
        return float(np.quantile(np.abs(self.errors), 0.9))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; `Calibration.from_file` reads it back."""
        return {
            "calibration": self.calibration.model_dump(),
            "draft_cost": self.draft_cost,
            "deviations": self.deviations,
            "not_identified": self.not_identified,
            "points": len(self.errors),
            "median_error": self.median_error,
            "high_error": self.high_error,
        }


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
    if parameters is None:
        return _report(search, search.run())
    return _report(search, search.best(tuple(parameters), 1))


def _report(search: Search, chosen: Candidate) -> Fit:
    values = search.values(chosen.names, chosen.solution.values)
    drafted = "draft_cost" in search.names
    draft_cost = values.pop("draft_cost", 0.0) if drafted else None
    calibration = Calibration(row_tile=chosen.tile, **values)
    deviations = {}
    solved = zip(chosen.names, chosen.solution.values, chosen.solution.deviations(), strict=True)
    for name, value, deviation in solved:
        unit = 1.0 if UNKNOWNS[name].logarithmic else max(abs(float(value)), 1e-12)
        deviations[name] = float(deviation) / unit
    predicted = search.times(calibration, draft_cost or 0.0)
    return Fit(
        calibration=calibration,
        draft_cost=draft_cost,
        deviations=deviations,
        not_identified=_left_out(search, chosen, values),
        predicted=tuple(predicted.tolist()),
        errors=tuple((predicted / search.measured - 1.0).tolist()),
    )


def _left_out(search: Search, chosen: Candidate, values: dict[str, float]) -> dict[str, str]:
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
