"""SQL over traces, by DuckDB: the views `requests`, `rounds` and `cohorts`, and ready summaries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.traces.folder import check_folder, files_of, partitions
from paceline.dataset.traces.records import (
    COLUMNS,
    KINDS,
    REQUESTS,
    TOKEN_COLUMNS,
    trace_package,
)

TYPES = {
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "int32": "INTEGER",
    "float64": "DOUBLE",
    "list<int32>": "INTEGER[]",
}
COHORT = "model, app, language, region"
Z = 1.96  # standard errors on either side of a 95% interval
# AL and its error: the ratio of two sums over requests, by the delta method with a request as unit
FIGURES = f"""
    count(*) AS requests,
    sum(output_tokens)::BIGINT AS tokens,
    sum(rounds)::BIGINT AS rounds,
    sum(draft_rounds)::BIGINT AS draft_rounds,
    1 + sum(accepted) / nullif(sum(draft_rounds), 0) AS al,
    {Z} * sqrt(
        greatest(0, sum(accepted::DOUBLE ** 2)
            - 2 * sum(accepted) / sum(draft_rounds) * sum(accepted::DOUBLE * draft_rounds)
            + (sum(accepted) / sum(draft_rounds)) ** 2 * sum(draft_rounds::DOUBLE ** 2))
        * count(*) / nullif(count(*) - 1, 0)
    ) / nullif(sum(draft_rounds), 0) AS al_error,
    sum(output_tokens - 1) FILTER (tpot IS NOT NULL)
        / nullif(sum(tpot * (output_tokens - 1)), 0) AS tokens_per_second,
    sum(ar_seconds) / nullif(sum(seconds) FILTER (ar_seconds > 0), 0) AS speedup,
    quantile_cont(ttft, 0.5) AS ttft"""
SHARE = "sum(rounds) / nullif(sum(sum(rounds)) OVER (), 0) AS share"
SUMMARIES = {
    "cohort": f"SELECT {COHORT}, {SHARE},{FIGURES} FROM requests GROUP BY ALL ORDER BY share DESC",
    "day": f"SELECT day,{FIGURES} FROM requests GROUP BY ALL ORDER BY day",
    "drafter": f"SELECT drafter, version, {SHARE},{FIGURES} FROM requests GROUP BY ALL "
    "ORDER BY share DESC",
}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows that a query gave."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def as_json(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class TraceQueries:
    """The views over a folder. Use open_traces()."""

    def __init__(self, connection: Any, folder: Path) -> None:
        self._connection, self._folder = connection, folder

    def summary(self, by: str) -> QueryResult:
        """Return requests, AL (incl. bonus) with its error, and speed, by one of SUMMARIES."""
        return self.query(SUMMARIES[by])

    def query(self, sql: str) -> QueryResult:
        """Run a query. Raises InvalidRequest (field `sql`) with DuckDB's reason."""
        duckdb = duckdb_module()
        try:
            cursor = self._connection.execute(sql)
            columns = tuple(column[0] for column in cursor.description or ())
            return QueryResult(columns, cursor.fetchall())
        except duckdb.Error as error:
            tables = "the views requests, rounds and cohorts"
            expected = f"a query of DuckDB over {tables}: {_first_lines(error)}"
            raise InvalidRequest("sql", sql, expected) from None


@contextmanager
def open_traces(
    folder: Path, *, since: float | None = None, until: float | None = None
) -> Iterator[TraceQueries]:
    """Make the views over a folder, of requests that ended from `since` to before `until` (seconds
    since the epoch). Queries may read nothing else from the disk, and write nothing.

    Raises MissingPackage without DuckDB, and InvalidRequest (field `traces`).
    """
    check_folder(folder)
    duckdb = duckdb_module()
    connection = duckdb.connect(":memory:", config={"threads": 1})
    try:
        for kind in KINDS:
            paths = [
                str(path)
                for place in partitions(folder, kind, since, until)
                for path in files_of(place)[0]
            ]
            connection.execute(_view(kind, paths, since, until))
        connection.execute(f"CREATE VIEW cohorts AS {SUMMARIES['cohort']}")
        connection.execute(f"SET allowed_directories = ['{_quoted(str(folder))}/']")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield TraceQueries(connection, folder)
    finally:
        connection.close()


def duckdb_module() -> Any:
    return trace_package("duckdb", "duckdb")


def _view(kind: str, paths: list[str], since: float | None, until: float | None) -> str:
    """Return the statement that makes the view of a kind of files; one without any has no rows."""
    columns = COLUMNS[kind]
    typed = ", ".join(f"NULL::{TYPES[type]} AS {name}" for name, type in columns.items())
    source = f"SELECT {typed} WHERE false"  # it has each column, where files are older than one
    if paths:
        listed = ", ".join(f"'{_quoted(path)}'" for path in paths)
        files = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
        source += f" UNION ALL BY NAME SELECT * FROM {files}"
    names = [
        f"CASE WHEN expires > epoch(now()) THEN {name} END AS {name}"
        if name in TOKEN_COLUMNS
        else name
        for name in columns
    ]
    where = []
    if kind == REQUESTS:
        names.append("strftime(make_timestamp((time * 1000000)::BIGINT), '%Y-%m-%d') AS day")
        where += [f"time >= {since!r}"] * (since is not None)
        where += [f"time < {until!r}"] * (until is not None)
    else:
        where += ["request IN (SELECT id FROM requests)"] * bool(since or until)
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    return f"CREATE VIEW {kind} AS SELECT {', '.join(names)} FROM ({source}){condition}"


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split())
