"""SQL over traces: the views agree with the rows, and reach nothing else."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.traces.query import SUMMARIES, QueryResult, open_traces

from .traced import DAY, NOON, traced, with_ids, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fast = {"tpot": 0.01, "ttft": 0.2, "seconds": 1.0, "ar_seconds": 2.0}
    slow = {"tpot": 0.03, "ttft": 0.4, "seconds": 1.0, "ar_seconds": 1.0}
    write(
        tmp_path,
        traced("a", (4, 4), (4, 2), **fast),
        traced("b", (4, 0), (4, 1), (4, 2), **slow),
        traced("c", (0, 0), drafter=None, language="fr"),
    )
    write(tmp_path, traced("d", (4, 3), time=NOON + DAY, **fast))
    return tmp_path


def rows(result: QueryResult) -> list[dict[str, object]]:
    return result.as_json()


def test_the_summary_by_cohort_agrees_with_the_rows(folder: Path) -> None:
    with open_traces(folder) as traces:
        german, french = rows(traces.summary("cohort"))
    assert (german["language"], german["requests"], german["draft_rounds"]) == ("de", 3, 6)
    assert german["al"] == pytest.approx(1 + 12 / 6) and german["share"] == pytest.approx(6 / 7)
    # the ratio 12/6 of three requests (6, 2), (3, 3), (3, 1), by the delta method
    residuals = [6 - 2 * 2, 3 - 2 * 3, 3 - 2 * 1]
    variance = 3 / 2 * sum(each**2 for each in residuals) / 6**2
    assert german["al_error"] == pytest.approx(1.96 * math.sqrt(variance))
    assert german["tokens_per_second"] == pytest.approx((7 + 5 + 3) / (0.07 + 0.15 + 0.03))
    assert german["speedup"] == pytest.approx(5 / 3) and german["ttft"] == pytest.approx(0.2)
    assert french["al"] is None and french["al_error"] is None and french["requests"] == 1
    assert french["tokens_per_second"] is None and french["speedup"] is None


def test_days_and_drafters(folder: Path) -> None:
    with open_traces(folder) as traces:
        days = rows(traces.summary("day"))
        drafters = rows(traces.summary("drafter"))
    assert [(day["day"], day["requests"]) for day in days] == [("2026-03-01", 3), ("2026-03-02", 1)]
    assert days[1]["al"] == 4.0 and days[1]["al_error"] is None, "one request has no interval"
    assert sum(row["requests"] for row in drafters) == 4  # type: ignore[misc]


def test_a_time_bounds_all_views(folder: Path) -> None:
    with open_traces(folder, since=NOON + 1) as traces:
        assert traces.query("SELECT id FROM requests").rows == [("d",)]
        assert traces.query("SELECT DISTINCT request FROM rounds").rows == [("d",)]
        assert traces.query("SELECT requests FROM cohorts").rows == [(1,)]


def test_rounds_join_requests(folder: Path) -> None:
    sql = (
        "SELECT r.id, sum(o.accepted) FROM requests r JOIN rounds o ON o.request = r.id "
        "GROUP BY 1 ORDER BY 1"
    )
    with open_traces(folder) as traces:
        assert traces.query(sql).rows == [("a", 6), ("b", 3), ("c", 0), ("d", 3)]


def test_expired_token_ids_are_not_shown(tmp_path: Path) -> None:
    now = time.time()
    write(tmp_path, with_ids("late", expires=now - 1), with_ids("fresh", expires=now + 100))
    with open_traces(tmp_path) as traces:
        rows = traces.query("SELECT id, output_ids, forced_places FROM requests").rows
    assert sorted(rows) == [("fresh", [70_001, 70_002], [1]), ("late", None, None)]


def test_an_empty_folder_has_empty_views(tmp_path: Path) -> None:
    (tmp_path / "requests").mkdir()
    with open_traces(tmp_path) as traces:
        for view in ("requests", "rounds", "cohorts"):
            assert traces.query(f"SELECT * FROM {view}").rows == []
        assert all(traces.summary(by).rows == [] for by in SUMMARIES)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT cohrt FROM requests", "cohrt"),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled|permission|allowed"),
        ("COPY (SELECT 1) TO '/tmp/paceline-out.csv'", "disabled|permission|allowed"),
        ("INSTALL httpfs", "disabled|permission|allowed"),
        ("SET enable_external_access = true", "locked"),
    ],
)
def test_a_query_that_cannot_be_run_says_why(folder: Path, sql: str, reason: str) -> None:
    with open_traces(folder) as traces, pytest.raises(InvalidRequest, match=f"sql: .*({reason})"):
        traces.query(sql)


def test_quotes_in_a_folders_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    write(folder, traced("a", (4, 2)))
    with open_traces(folder) as traces:
        assert traces.query("SELECT count(*) FROM rounds").rows == [(1,)]
