"""What traces say: the hours of each cohort, the arms of a canary, and answers to learn from."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.autospec.answers import traced_answer
from paceline.autospec.canary import CanaryRequests
from paceline.autospec.drift import HourCells, PositionCells, RequestColumns, RoundColumns
from paceline.autospec.loop.calendar import DriftCalendar
from paceline.autospec.store import ALL
from paceline.autospec.sums import IntArray
from paceline.core.cohorts import PARTS, Cohort
from paceline.core.request import FinishReason
from paceline.dataset.traces.reader import (
    Selection,
    read_tokens,
    request_tables,
    round_tables,
)
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
POSITIONS = ("id", *PARTS, "time", "drafter", "route", "prompt_tokens")
ROUND = ("request", "position", "drafted", "accepted")
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

    def positions(
        self,
        since: float,
        until: float,
        without: Collection[str] = (),
        calendar: DriftCalendar = USUAL_DAYS,
    ) -> PositionCells:
        """Return acceptance by position in the answer and in the context, of the same requests."""
        import pyarrow as arrow
        import pyarrow.compute as compute

        wanted, cells = Selection(since=since, until=until), PositionCells()
        found = [_kept(table, without) for table in self.tables(wanted, POSITIONS)]
        if not found:
            return cells
        requests = arrow.concat_tables(found).combine_chunks()
        cohorts, cohort = _cohorts(requests)
        time = requests["time"].to_numpy() * calendar.stretch
        prompt = requests["prompt_tokens"].to_numpy()
        for table in round_tables(self.folder, requests["id"], wanted, ROUND):
            table = table.filter(compute.greater(table["drafted"], 0))
            row = compute.index_in(table["request"], value_set=requests["id"]).to_numpy()
            position = table["position"].to_numpy()
            cells += PositionCells.of(
                RoundColumns(
                    cohorts=cohorts,
                    cohort=cohort[row],
                    request=row.astype(np.int64),
                    time=time[row],
                    position=position,
                    context=prompt[row] + position,
                    accepted=table["accepted"].to_numpy().astype(float),
                )
            )
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
            traced_answer(trace)
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


def _kept(table: Any, without: Collection[str]) -> Any:
    """Return the requests that say something about the live drafters: not those that chose their
    drafter, nor those of the drafters `without`."""
    import pyarrow.compute as compute

    keep = compute.fill_null(compute.not_equal(table["route"], NAMED), True)
    for name in without:
        keep = compute.and_(
            keep, compute.fill_null(compute.not_equal(table["drafter"], name), True)
        )
    return table.filter(keep)


def _cohorts(table: Any) -> tuple[tuple[str, ...], IntArray]:
    """Return the labels of a table's cohorts, and the index of each row's."""
    parts = zip(*(table[part].to_pylist() for part in PARTS), strict=True)
    known: dict[tuple[str, ...], int] = {}
    index = np.array([known.setdefault(each, len(known)) for each in parts], np.int64)
    return tuple(Cohort(*each).label for each in known), index


def _columns(table: Any, without: Collection[str], calendar: DriftCalendar) -> RequestColumns:
    """Return the requests of a table that drift looks at, without a loop over its columns."""
    table = _kept(table, without)
    cohorts, cohort = _cohorts(table)
    values = {name: table[name].to_numpy().astype(float) for name in DRIFT[-3:]}
    return RequestColumns(
        cohorts=cohorts,
        cohort=cohort,
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
        ttft=column(nan if request.ttft is None else request.ttft for request in requests),
        total=column(nan if request.total is None else request.total for request in requests),
        failed=np.array([request.finish == FinishReason.ERROR for request in requests], bool),
        valid=np.full(len(requests), nan),  # traces do not say whether an answer was valid
    )
