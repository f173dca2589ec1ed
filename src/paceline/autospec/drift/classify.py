"""From evidence to findings: the order in which causes are considered."""

from __future__ import annotations

import numpy as np

from paceline.autospec.drift import findings
from paceline.autospec.drift.case import DriftCase
from paceline.autospec.drift.cells import HOUR, HourCells
from paceline.autospec.drift.evidence import gather
from paceline.autospec.drift.ledger import Ledger
from paceline.autospec.drift.periods import drift_periods
from paceline.autospec.drift.positions import PositionCells, decays
from paceline.autospec.drift.report import DriftReport
from paceline.autospec.drift.within import within_reports
from paceline.autospec.drift.worth import Speedup
from paceline.autospec.policy import AutospecPolicy


def assess(
    cells: HourCells,
    ledger: Ledger,
    now: float,
    policy: AutospecPolicy,
    speedup: Speedup | None = None,
    positions: PositionCells | None = None,
) -> list[DriftReport]:
    """Say what changed until `now` (seconds since the epoch) and what to do, most important first.

    The same cells, ledger and time give the same reports: nothing is kept between calls.
    `speedup` maps an AL to the speedup over decoding without drafts, by the server's own costs.
    With `positions`, falls late in answers or in long contexts are told from others.
    """
    hour = int(now // HOUR)
    if not cells.sums.size:
        return [findings.unseen(hour * HOUR, policy.drift)]
    return classify(drift_case(cells, ledger, hour, policy, speedup), positions)


def drift_case(
    cells: HourCells,
    ledger: Ledger,
    hour: int,
    policy: AutospecPolicy,
    speedup: Speedup | None = None,
) -> DriftCase:
    """Return the evidence of all cohorts at an hour since the epoch; there is a request in it."""
    evidence = gather(cells, ledger.begins(cells.cohorts), hour, policy.drift)
    periods = drift_periods(cells, hour, policy.drift)
    return DriftCase(cells.cohorts, evidence, periods, ledger, policy, speedup)


def classify(case: DriftCase, positions: PositionCells | None = None) -> list[DriftReport]:
    """Return the findings; there is always one.

    A step in all cohorts and loops come first: what they explain is no drafter's fault.
    """
    reports = list(findings.deployments(case))
    if positions is not None and not reports:
        reports += decays(case, positions)
    settled = [label for report in reports for label in report.cohorts]
    is_open = ~np.isin(np.array(case.cohorts, dtype=object), settled) & ~findings.looping_rows(case)
    reports += findings.loops(case)
    reports += within_reports(case, is_open)
    reports += findings.mix_change(case)
    reports += findings.season_move(case)
    reports += findings.learning(case)
    return reports or [findings.steady(case)]
