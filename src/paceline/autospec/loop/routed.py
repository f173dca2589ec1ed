"""Cohorts whose requests are shared out among live versions, as the store keeps them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from paceline.autospec.live_server import match_of
from paceline.autospec.loop.decide import LoopAction, LoopDecision
from paceline.autospec.server_client import RouteRule
from paceline.autospec.store import DrafterStore

KIND = "routing"  # of its decisions
LONGEST_SHOWN = 200  # characters of a cohort in the reason that requests get


@dataclass(frozen=True, slots=True)
class RoutedCohort:
    """How a cohort's requests are shared out among live versions; shares sum to 1. `source` says by
    what evidence, `why` says it in a sentence."""

    cohort: str
    shares: Mapping[str, float]
    source: str
    why: str
    time: float

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return what a row of the store says."""
        shares = json.loads(row["shares"])
        return cls(row["cohort"], shares, row["source"], row["why"], row["time"])

    def rule(self) -> RouteRule:
        """Return the rule of the routes, with the reason that requests get."""
        shown = self.cohort[:LONGEST_SHOWN].encode("ascii", "replace").decode()
        return RouteRule(match_of(self.cohort), self.shares, f"{shown} by {self.source}")

    def decision(self) -> LoopDecision:
        """Return it as a decision of the loop."""
        return LoopDecision(KIND, LoopAction.SHARE_OUT, (self.cohort,), self.time, why=(self.why,))


def routed_cohorts(store: DrafterStore) -> list[RoutedCohort]:
    """Return the cohorts that are shared out among versions that are live still."""
    live = set(store.live().values())
    rows = store.database.rows("SELECT * FROM routings ORDER BY cohort")
    return [routed for routed in map(RoutedCohort.of, rows) if routed.shares.keys() <= live]
