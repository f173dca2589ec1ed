"""The days of a policy: drift counts in days of 86400 seconds, and a policy may have shorter ones.

Times are stretched on the way into drift and shrunk on the way out: drift knows one length alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.autospec.drift import DriftReport, Ledger, LedgerEntry
from paceline.autospec.drift.cells import DAY, HOUR

HOURS = 24  # of a day, however long


@dataclass(frozen=True, slots=True)
class DriftCalendar:
    """The days of a policy, in seconds of the clock."""

    day_seconds: float = DAY

    @property
    def stretch(self) -> float:
        """Seconds of drift in a second of the clock."""
        return DAY / self.day_seconds

    def hour_of(self, time: float) -> int:
        """Return the policy's hour, counted since the epoch, in which a time of the clock lies."""
        return int(time // (self.day_seconds / HOURS))

    def clock(self, hour: int) -> float:
        """Return when an hour begins, in seconds of the clock since the epoch."""
        return hour * (self.day_seconds / HOURS)

    def drift(self, hour: int) -> float:
        """Return when an hour begins, in seconds of drift."""
        return hour * HOUR

    def stretched(self, entries: Iterable[LedgerEntry]) -> Ledger:
        """Return a ledger for drift, of entries whose times are those of the clock."""
        return Ledger(
            tuple(
                replace(
                    entry,
                    time=entry.time * self.stretch,
                    end=None if entry.end is None else entry.end * self.stretch,
                )
                for entry in entries
            )
        )

    def shrunk(self, report: DriftReport) -> DriftReport:
        """Return a report of drift with the clock's times."""
        start, end = report.start / self.stretch, report.end / self.stretch
        return replace(report, start=start, end=end)
