"""What requests say of each drafter in each cohort: rounds and their tokens, day by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.autospec.loop.observe import NAMED, TraceFolder
from paceline.core.cohorts import PARTS, Cohort
from paceline.core.rounds import acceptance_length
from paceline.dataset.traces.reader import Selection

COLUMNS = (*PARTS, "time", "drafter", "route", "accepted", "rounds", "draft_bound", "held_back",
           "spec_off")  # fmt: skip
LEAST_CEILING = 2.0


@dataclass(frozen=True, slots=True)
class RoundSums:
    """Rounds of a drafter, those without a draft among them, and draft tokens that stand."""

    rounds: int = 0
    accepted: int = 0

    @property
    def tokens_per_round(self) -> float:
        """Tokens per round, incl. bonus."""
        return acceptance_length(self.accepted, self.rounds) or 1.0

    def __add__(self, other: RoundSums) -> RoundSums:
        return RoundSums(self.rounds + other.rounds, self.accepted + other.accepted)


@dataclass(slots=True)
class CohortRounds:
    """The rounds of a cohort: sums by drafter for each day, the earliest first. `ceiling` is γ + 1,
    the most tokens of a round."""

    days: list[Mapping[str, RoundSums]] = field(default_factory=list)
    ceiling: float = LEAST_CEILING

    @property
    def total(self) -> int:
        return sum(sums.rounds for day in self.days for sums in day.values())


def live_rounds(
    traces: TraceFolder, since: float, until: float, names: Collection[str], day_seconds: float
) -> dict[str, CohortRounds]:
    """Return what the requests of these drafters say, by cohort. Requests that chose their drafter
    themselves, were held back or ran without drafts say nothing."""
    sums: defaultdict[tuple[str, int, str], RoundSums] = defaultdict(RoundSums)
    ceilings: defaultdict[str, float] = defaultdict(lambda: LEAST_CEILING)
    for table in traces.tables(Selection(since=since, until=until), COLUMNS):
        for row in _grouped(table, names, day_seconds):
            label = Cohort(*(row[part] for part in PARTS)).label
            added = RoundSums(row["rounds_sum"], row["accepted_sum"])
            sums[label, row["day"], row["drafter"]] += added
            ceilings[label] = max(ceilings[label], row["draft_bound_max"] + 1.0)
    found: dict[str, CohortRounds] = {}
    days: dict[tuple[str, int], dict[str, RoundSums]] = {}
    for (label, day, drafter), value in sorted(sums.items()):
        live = found.setdefault(label, CohortRounds(ceiling=ceilings[label]))
        if (label, day) not in days:
            days[label, day] = {}
            live.days.append(days[label, day])
        days[label, day][drafter] = value
    for live in found.values():  # an engine that does not say how long its drafts may be
        means = [each.tokens_per_round for day in live.days for each in day.values()]
        live.ceiling = max(live.ceiling, *means)
    return found


def _grouped(table: Any, names: Collection[str], day_seconds: float) -> list[dict[str, Any]]:
    """Return the sums of a table by cohort, day and drafter."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    keep = compute.is_in(table["drafter"], arrow.array(sorted(names), arrow.string()))
    for reason in (
        compute.equal(table["route"], NAMED),
        table["held_back"],
        table["spec_off"],
        compute.equal(table["rounds"], 0),
    ):
        keep = compute.and_(keep, compute.invert(compute.fill_null(reason, False)))
    table = table.filter(keep)
    day = compute.floor(compute.divide(table["time"], day_seconds))
    table = table.append_column("day", compute.cast(day, arrow.int64()))
    grouped = table.group_by([*PARTS, "day", "drafter"]).aggregate(
        [("rounds", "sum"), ("accepted", "sum"), ("draft_bound", "max")]
    )
    rows: list[dict[str, Any]] = grouped.to_pylist()
    return rows
