"""Reads traces: for drift and canaries (rows), for training, corpora and scores (token ids)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.cohorts import Cohort
from paceline.dataset.traces.folder import check_folder, files_of, partitions, read_part
from paceline.dataset.traces.records import (
    COLUMNS,
    OWN,
    REQUESTS,
    ROUNDS,
    SHARED,
    TOKEN_COLUMNS,
    RequestTrace,
    RoundTrace,
    arrow_module,
    request_rows,
    schema,
    without_tokens,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which answers are read: those that ended from `since` to before `until` (seconds since the
    epoch), of the cohorts that have these parts, as {"app": "shop", "language": "de"}."""

    since: float | None = None
    until: float | None = None
    cohort: Mapping[str, str] | None = None
    engine: str | None = None

    def of(self, table: Any) -> Any:
        """Return the rows of a table of requests that are selected."""
        import pyarrow.compute as compute

        wanted = {**(self.cohort or {}), **({"engine": self.engine} if self.engine else {})}
        for name, value in wanted.items():
            table = table.filter(compute.equal(table[name], value))
        if self.since is not None:
            table = table.filter(compute.greater_equal(table["time"], self.since))
        if self.until is not None:
            table = table.filter(compute.less(table["time"], self.until))
        return table


ALL = Selection()


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The token ids of one answer, which a drafter may learn from or be scored on until they
    expire; None: for ever. With `grammar` one bound the output, and left no choice at
    `forced_places` of it."""

    id: str
    time: float
    cohort: Cohort
    key: str
    drafter: str | None
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    expires: float | None
    forced_places: tuple[int, ...] = ()
    grammar: bool = False


def request_tables(
    folder: Path, selection: Selection = ALL, columns: Collection[str] | None = None
) -> Iterator[Any]:
    """Yield Arrow tables of requests, a file each, the oldest day first; `columns` are those that
    the caller wants (default: all but the token ids). Token ids that have expired are null.

    Raises InvalidRequest (field `traces`) for a folder without traces, and for a damaged file.
    """
    check_folder(folder)
    wanted = list(columns or (name for name in COLUMNS[REQUESTS] if name not in TOKEN_COLUMNS))
    needed = {*wanted, "time", "model", "app", "language", "region", "engine", "expires"}
    app = (selection.cohort or {}).get("app", "")
    for place in partitions(folder, REQUESTS, selection.since, selection.until, app):
        for path in files_of(place)[0]:
            try:
                table = read_part(path, needed)
            except FileNotFoundError:
                continue  # its days are over
            whole = [schema(REQUESTS).empty_table(), table]  # an older file lacks columns
            table = selection.of(arrow_module().concat_tables(whole, promote_options="default"))
            if table.num_rows:
                yield _without_expired(table, time.time()).select(wanted)


def read_requests(folder: Path, selection: Selection = ALL) -> Iterator[RequestTrace]:
    """Yield requests without their token ids, by day. Raises InvalidRequest as request_tables()."""
    for table in request_tables(folder, selection):
        yield from request_rows(table)


def round_tables(
    folder: Path, ids: Any, selection: Selection = ALL, columns: Collection[str] | None = None
) -> Iterator[Any]:
    """Yield Arrow tables of the rounds of requests, a file each; `ids` is an Arrow array of their
    ids, and `columns` are those that the caller wants.

    Raises InvalidRequest as request_tables().
    """
    import pyarrow.compute as compute

    wanted = list(columns or RoundTrace._fields)
    app = (selection.cohort or {}).get("app", "")
    for place in partitions(folder, ROUNDS, selection.since, selection.until, app):
        for path in files_of(place)[0]:
            try:
                table = read_part(path, {*wanted, "request"})
            except FileNotFoundError:
                continue  # its days are over
            yield table.filter(compute.is_in(table["request"], value_set=ids)).select(wanted)


def read_rounds(folder: Path, selection: Selection = ALL) -> Iterator[RoundTrace]:
    """Yield the rounds of requests, those of one request in order. Raises InvalidRequest as
    request_tables()."""
    import pyarrow as arrow

    tables = [table["id"] for table in request_tables(folder, selection, ["id"])]
    ids = arrow.chunked_array([chunk for each in tables for chunk in each.chunks], arrow.string())
    for table in round_tables(folder, ids, selection):
        for record in table.to_pylist():
            yield RoundTrace(**record)


def read_tokens(
    folder: Path, selection: Selection = ALL, *, for_key: str | None = None
) -> Iterator[TokenTrace]:
    """Yield the answers whose token ids are there, by day: those that all drafters may learn from,
    and with `for_key` also those that only drafters which serve this key alone may learn from.

    Raises InvalidRequest as request_tables().
    """
    columns = ("id", "time", "key", "scope", "drafter", "model", "app", "language", "region")
    wanted = (*columns, *TOKEN_COLUMNS, "expires", "grammar")
    for table in request_tables(folder, selection, wanted):
        for row in table.to_pylist():
            allowed = row["scope"] == SHARED or (row["scope"] == OWN and row["key"] == for_key)
            if not allowed or row["prompt_ids"] is None or row["output_ids"] is None:
                continue
            yield TokenTrace(
                row["id"],
                row["time"],
                Cohort(row["model"], row["app"], row["language"], row["region"]),
                row["key"],
                row["drafter"],
                tuple(row["prompt_ids"]),
                tuple(row["output_ids"]),
                row["expires"],
                tuple(row["forced_places"] or ()),
                bool(row["grammar"]),
            )


def _without_expired(table: Any, now: float) -> Any:
    """Return a table without the rows' token ids whose time has come, deleted or not."""
    held = [name for name in TOKEN_COLUMNS if name in table.column_names]
    if not held:
        return table
    import pyarrow.compute as compute

    return without_tokens(table, compute.less_equal(table["expires"], now))
