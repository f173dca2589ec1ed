"""What traces say: the hours of each cohort, the arms of a canary, and answers to learn from."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.autospec.canary import CanaryRequests
from paceline.autospec.drift import HourCells, RequestColumns
from paceline.autospec.loop.calendar import DriftCalendar
from paceline.autospec.store import ALL
from paceline.core.cohorts import PARTS, Cohort
from paceline.core.request import FinishReason
from paceline.dataset.traces.reader import Selection, read_tokens, request_tables
from paceline.dataset.traces.records import SHARED, RequestTrace
from paceline.drafters.corpus_folder import CorpusAnswer

# of a request: what drift looks at, and what a canary looks at
DRIFT = (*PARTS, "time", "drafter", "route", "accepted", "draft_rounds", "draft_bound")
CANARY = (
    "id",
    *DRIFT,
    "rounds",
    "output_tokens",
    "ttft",
    "total",
    "finish",
    "held_back",
    "spec_off",
)
USUAL_DAYS = DriftCalendar()
NAMED = "named"  # the route of a request that chose its drafter itself


@dataclass(frozen=True, slots=True)
class CanaryArms:
    """Whose requests a canary compares: those of a cohort, or with "" those of all cohorts but
    `others`, that had the version or the one that it would replace."""

    cohort: str
    version: str
    replaces: str
    others: frozenset[str] = frozenset()

    def has(self, request: RequestTrace) -> bool:
        """Return whether a request belongs to one of the arms. One that chose its drafter or asked
        for no drafts, was held back or hung up says nothing about the drafter."""
        label = request.cohort.label
        mine = label not in self.others if self.cohort == ALL else label == self.cohort
        chosen = request.route != NAMED and not request.held_back and not request.spec_off
        finished = request.finish != FinishReason.ABORT
        return mine and chosen and finished and request.drafter in (self.version, self.replaces)


@dataclass(frozen=True, slots=True)
class TraceFolder:
    """The traces of a server. Every method raises InvalidRequest for a damaged file."""

    folder: Path

    def tables(self, selection: Selection, columns: Collection[str]) -> Iterator[Any]:
        """Yield Arrow tables of requests, as request_tables(); none of a server that has not
        written anything yet."""
        if self._is_written:
            yield from request_tables(self.folder, selection, columns)

    def cells(
        self,
        since: float,
        until: float,
        without: Collection[str] = (),
        calendar: DriftCalendar = USUAL_DAYS,
    ) -> HourCells:
        """Return the hourly sums of each cohort, without requests that chose their drafter and
        those of the drafters `without`: a canary says nothing about the live one."""
        cells = HourCells()
        for table in self.tables(Selection(since=since, until=until), DRIFT):
            cells += HourCells.of(_columns(table, without, calendar))
        return cells

    def arms(self, arms: CanaryArms, since: float, until: float) -> CanaryRequests:
        """Return the requests of a canary that ended in between."""
        wanted = Selection(since=since, until=until)
        chosen = [
            request
            for table in self.tables(wanted, CANARY)
            for request in map(_request_of, table.to_pylist())
            if arms.has(request)
        ]
        chosen.sort(key=lambda request: (request.time, request.id))
        return _as_columns(chosen, arms.version)

    def answers(self, cohort: str, since: float, until: float) -> list[CorpusAnswer]:
        """Return the answers of a cohort, of all with "", that every drafter may learn from; the
        oldest first."""
        if not self._is_written:
            return []
        found = [
            CorpusAnswer(
                trace.time,
                trace.cohort.label,
                trace.key,
                trace.prompt_ids,
                trace.output_ids,
                trace.expires,
            )
            for trace in read_tokens(self.folder, _selection(cohort, since, until))
            if trace.prompt_ids and trace.output_ids
        ]
        return sorted(found, key=lambda answer: answer.time)

    def consented(self, cohort: str, since: float, until: float) -> int:
        """Return the number of those answers, without reading their token ids."""
        import pyarrow.compute as compute

        count = 0
        wanted = _selection(cohort, since, until)
        for table in self.tables(wanted, ("scope", "expires")):
            shared = compute.equal(table["scope"], SHARED)
            lasting = compute.fill_null(compute.greater(table["expires"], time.time()), True)
            count += compute.sum(compute.and_(shared, lasting)).as_py() or 0
        return count

    @property
    def _is_written(self) -> bool:
        """Whether a server has written anything; an absent folder is an error of whoever reads."""
        if not self.folder.is_dir():
            return True
        return any(not path.name.startswith(".") for path in self.folder.iterdir())


def _selection(cohort: str, since: float, until: float) -> Selection:
    """Return which requests of a cohort, of all with "", ended in between."""
    match = {} if cohort == ALL else {p: getattr(Cohort.parse(cohort), p) for p in PARTS}
    return Selection(since=since, until=until, cohort=match)


def _columns(table: Any, without: Collection[str], calendar: DriftCalendar) -> RequestColumns:
    """Return the requests of a table that drift looks at, without a loop over its rows."""
    import pyarrow.compute as compute

    keep = compute.fill_null(compute.not_equal(table["route"], NAMED), True)
    for name in without:
        keep = compute.and_(
            keep, compute.fill_null(compute.not_equal(table["drafter"], name), True)
        )
    table = table.filter(keep)
    parts = zip(*(table[part].to_pylist() for part in PARTS), strict=True)
    known: dict[tuple[str, ...], int] = {}
    cohort = [known.setdefault(each, len(known)) for each in parts]
    values = {name: table[name].to_numpy().astype(float) for name in DRIFT[-3:]}
    return RequestColumns(
        cohorts=[Cohort(*each).label for each in known],
        cohort=np.array(cohort, np.int64),
        time=table["time"].to_numpy() * calendar.stretch,
        accepted=values["accepted"],
        rounds=values["draft_rounds"],
        longest=values["draft_bound"],
    )


def _request_of(record: dict[str, Any]) -> RequestTrace:
    return RequestTrace(**record)


def _as_columns(requests: list[RequestTrace], version: str) -> CanaryRequests:
    nan = float("nan")

    def column(values: Iterator[float]) -> Any:
        return np.array([*values], float)

    return CanaryRequests(
        time=column(request.time for request in requests),
        is_canary=np.array([request.drafter == version for request in requests], bool),
        accepted=column(request.accepted for request in requests),
        rounds=column(request.rounds for request in requests),
        tokens=column(request.output_tokens for request in requests),
        ttft=column(request.ttft or 0.0 for request in requests),
        total=column(request.total or 0.0 for request in requests),
        failed=np.array([request.finish == FinishReason.ERROR for request in requests], bool),
        valid=np.full(len(requests), nan),  # traces do not say whether an answer was valid
    )
