"""Traces on disk: what is written is read, what has expired is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort
from paceline.dataset.traces import retention
from paceline.dataset.traces.folder import (
    Partition,
    SessionDigest,
    files_of,
    only_one,
    read_part,
    slug,
    write_part,
)
from paceline.dataset.traces.query import open_traces
from paceline.dataset.traces.reader import (
    Selection,
    read_requests,
    read_rounds,
    read_tokens,
    request_tables,
)
from paceline.dataset.traces.records import COLUMNS, KINDS, REQUESTS, ROUNDS, RoundTrace
from paceline.dataset.traces.retention import Retention, purge, tidy

from .traced import DAY, NOON, traced, with_ids, write


def ids(folder: Path, **selection: object) -> list[str]:
    return [row.id for row in read_requests(folder, Selection(**selection))]  # type: ignore[arg-type]


def parts(folder: Path, kind: str = REQUESTS) -> list[Path]:
    return sorted((folder / kind).rglob("*.parquet"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    answer = traced(
        "a", (4, 2), (0, 0), key="team", held_back=None, tpot=0.02, drafted_by_position=[1, 1, 1, 1]
    )
    write(tmp_path, answer)
    (path,) = parts(tmp_path)
    assert path.parent == tmp_path / "requests" / "day=2026-03-01" / "app=shop"
    (row,) = read_requests(tmp_path)
    assert row == answer[0].__class__(**{**_fields(answer[0]), "accepted_by_position": []})
    assert row.cohort == Cohort("m", "shop", "de", "eu")
    assert row.acceptance_length == 3.0 and row.output_tokens == 4
    first, second = read_rounds(tmp_path)
    assert first == RoundTrace("a", 0, 4, 2, True, 0, None, None, 2, 10, 0.001, 0.02)
    assert (second.position, second.drafted) == (3, 0)


def _fields(row: object) -> dict[str, object]:
    return {name: getattr(row, name) for name in COLUMNS[REQUESTS]}


def test_requests_are_selected(tmp_path: Path) -> None:
    write(tmp_path, traced("a", (4, 2)), traced("b", (4, 1), language="fr", time=NOON + 5))
    write(tmp_path, traced("c", (4, 0), app="chat"))
    write(tmp_path, traced("d", (4, 0), time=NOON + DAY, engine="vllm"))
    assert sorted(ids(tmp_path)) == ["a", "b", "c", "d"]
    assert ids(tmp_path, cohort={"app": "shop", "language": "fr"}) == ["b"]
    assert ids(tmp_path, cohort={"app": "chat"}) == ["c"]
    assert ids(tmp_path, since=NOON + 5) == ["b", "d"]
    assert sorted(ids(tmp_path, since=NOON, until=NOON + 5)) == ["a", "c"]
    assert ids(tmp_path, engine="vllm") == ["d"]
    assert {r.request for r in read_rounds(tmp_path, Selection(cohort={"language": "fr"}))} == {"b"}
    (table,) = request_tables(tmp_path, Selection(since=NOON + DAY), ["id", "accepted"])
    assert table.column_names == ["id", "accepted"]


def test_files_of_an_older_version_are_read(tmp_path: Path) -> None:
    """They do not say where a grammar left no choice, and are read beside files that do."""
    write(tmp_path, with_ids("old", expires=time.time() + DAY))
    (path,) = parts(tmp_path)
    table = read_part(path).drop_columns(["forced_places"])
    write_part(path.parent, table, name=path.name)
    (trace,) = read_tokens(tmp_path)
    assert (trace.output_ids, trace.forced_places) == ((70_001, 70_002), ())
    sql = "SELECT id, forced_places FROM requests ORDER BY id"
    with open_traces(tmp_path) as traces:
        assert traces.query(sql).rows == [("old", None)]
    write(tmp_path, with_ids("new", expires=time.time() + DAY))
    assert {t.id: t.forced_places for t in read_tokens(tmp_path)} == {"old": (), "new": (1,)}
    with open_traces(tmp_path) as traces:
        assert traces.query(sql).rows == [("new", [1]), ("old", None)]


def test_token_ids_are_for_whom_they_are_meant(tmp_path: Path) -> None:
    late = time.time() + 100
    write(
        tmp_path,
        traced("plain"),
        with_ids("shared", expires=late),
        with_ids("a's", key="a", scope="own", expires=late),
        with_ids("b's", key="b", scope="own", expires=late),
        with_ids("late", expires=time.time() - 1),
    )

    def read(for_key: str | None = None) -> set[str]:
        return {each.id for each in read_tokens(tmp_path, for_key=for_key)}

    assert read() == {"shared"}
    assert read("a") == {"shared", "a's"}
    assert read("b") == {"shared", "b's"}
    (trace,) = read_tokens(tmp_path)
    assert (trace.prompt_ids, trace.output_ids) == ((7, 8, 9), (70_001, 70_002))
    assert all(row.prompt_ids is None for row in read_requests(tmp_path))


def test_no_traces_and_damage_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"traces: got .*expected a folder that"):
        list(read_requests(tmp_path))
    write(tmp_path, traced("a"))
    parts(tmp_path)[0].write_bytes(b"PAR1 or so")
    with pytest.raises(InvalidRequest, match=r"part-.*parquet is not a complete Parquet"):
        list(read_requests(tmp_path))


@pytest.mark.parametrize("app", ["../../etc", "a/b", "", ".hidden", "ä" * 64, "Team A"])
def test_an_app_cannot_leave_its_folder(tmp_path: Path, app: str) -> None:
    place = Partition(REQUESTS, "2026-03-01", app).path(tmp_path)
    assert place.resolve().parent == tmp_path.resolve() / "requests" / "day=2026-03-01"
    assert place.name.startswith("app=") and len(place.name.encode()) < 100
    write(tmp_path, traced("a", app=app))
    assert ids(tmp_path, cohort={"app": app}) == ["a"]


@given(st.text(max_size=80), st.text(max_size=80))
def test_two_apps_have_two_folders(one: str, other: str) -> None:
    assert (slug(one) == slug(other)) == (one == other)


# -- retention -------------------------------------------------------------------------------------


def test_expired_token_ids_are_deleted_and_their_rows_stay(tmp_path: Path) -> None:
    write(tmp_path, with_ids("a", (4, 2)), with_ids("b", (4, 2), expires=NOON + 9 * DAY))
    before = parts(tmp_path)
    purged = purge(tmp_path, now=NOON + 2 * DAY)
    assert (purged.token_rows, purged.requests) == (1, 0)
    assert parts(tmp_path) == before and sorted(ids(tmp_path)) == ["a", "b"]
    (table,) = request_tables(tmp_path, columns=COLUMNS[REQUESTS])
    rows = {row["id"]: row for row in table.to_pylist()}
    assert rows["a"]["prompt_ids"] is None and rows["a"]["output_ids"] is None
    assert rows["a"]["expires"] is None and rows["a"]["scope"] == ""
    kept = {row["id"]: row["forced_places"] for row in read_part(before[0]).to_pylist()}
    assert kept == {"a": None, "b": [1]}
    assert purge(tmp_path, now=NOON + 2 * DAY).token_rows == 0, "nothing is left to do"
    assert purge(tmp_path, now=NOON + 10 * DAY).token_rows == 1


def test_all_token_ids_can_be_deleted(tmp_path: Path) -> None:
    write(tmp_path, with_ids("a"), traced("b"))
    assert purge(tmp_path, now=NOON, tokens=True).token_rows == 1
    assert holds(tmp_path, 70_001) is False and sorted(ids(tmp_path)) == ["a", "b"]


def holds(folder: Path, token: int) -> bool:
    """Return whether any file holds a token id, in a column or as bytes."""
    import pyarrow.parquet as parquet

    for path in (path for path in folder.rglob("*") if path.is_file()):
        if token.to_bytes(4, "little") in path.read_bytes():
            return True
        if path.suffix == ".parquet":
            table = parquet.read_table(path, partitioning=None)
            if any(token in _values(column.to_pylist()) for column in table.columns):
                return True
    return False


def _values(column: list[object]) -> set[object]:
    return {each for value in column for each in (value if isinstance(value, list) else [value])}


def test_the_search_for_token_ids_finds_some(tmp_path: Path) -> None:
    write(tmp_path, with_ids("a"))
    assert holds(tmp_path, 70_001) and not holds(tmp_path, 70_003)


def test_old_days_are_deleted(tmp_path: Path) -> None:
    write(tmp_path, with_ids("old", (4, 1)))
    write(tmp_path, traced("new", (4, 1), time=NOON + 5 * DAY))
    purged = purge(tmp_path, now=NOON + 5 * DAY, keep_days=4)
    assert purged.requests == 1 and ids(tmp_path) == ["new"]
    for kind in KINDS:
        assert [path.name for path in (tmp_path / kind).iterdir()] == ["day=2026-03-06"]


def test_all_that_is_kept_of_a_key_is_deleted(tmp_path: Path) -> None:
    write(
        tmp_path,
        with_ids("a", (4, 1), key="team-a", scope="own"),
        traced("b", (4, 1), (4, 2), key="team-b"),
    )
    write(tmp_path, traced("c", (4, 1), key="team-a", app="chat"))
    assert purge(tmp_path, now=NOON, key="team-a").requests == 2
    assert ids(tmp_path) == ["b"] and not holds(tmp_path, 70_001)
    assert {round.request for round in read_rounds(tmp_path)} == {"b"}
    assert all("app=chat" not in str(path) for path in tmp_path.rglob("*.parquet"))


def test_left_over_temporary_files_are_deleted(tmp_path: Path) -> None:
    write(tmp_path, traced("a"))
    place = parts(tmp_path)[0].parent
    old, fresh = place / "part-x.parquet.tmp", place / "part-y.parquet.tmp"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (NOON - 7200, NOON - 7200))
    os.utime(fresh, (NOON - 1, NOON - 1))
    purge(tmp_path, now=NOON)
    assert not old.exists() and fresh.exists()


def test_small_files_are_merged_and_nothing_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MERGE_FROM", 4)
    now = time.time()
    for index in range(5):
        write(tmp_path, with_ids(f"r{index}", (4, index % 4), expires=now + DAY, time=now))
    tidy(tmp_path, Retention(), now)
    counted, others = files_of(parts(tmp_path)[0].parent)
    assert len(counted) == 1 and len(others) == 5, "readers may still use the small files"
    assert ids(tmp_path) == [f"r{index}" for index in range(5)]
    assert len(list(read_rounds(tmp_path))) == 5
    for index in range(5, 8):  # merged files are merged as well
        write(tmp_path, traced(f"r{index}", time=now))
    tidy(tmp_path, Retention(), now + 1)
    assert sorted(ids(tmp_path)) == [f"r{index}" for index in range(8)]
    tidy(tmp_path, Retention(), now + retention.GRACE_SECONDS + 100)
    assert len(parts(tmp_path)) == 1 and len(ids(tmp_path)) == 8
    assert purge(tmp_path, now=now + 2 * DAY).token_rows == 5
    assert not holds(tmp_path, 70_001) and len(ids(tmp_path)) == 8


def test_expired_token_ids_do_not_outlive_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MERGE_FROM", 2)
    now = time.time()
    for index in range(2):
        write(tmp_path, with_ids(f"r{index}", expires=now + 10, time=now))
    tidy(tmp_path, Retention(), now)
    assert len(parts(tmp_path)) == 3
    tidy(tmp_path, Retention(), now + 20)  # within the time that readers have for the small files
    assert not holds(tmp_path, 70_001) and sorted(ids(tmp_path)) == ["r0", "r1"]


def test_a_damaged_file_keeps_nothing_else_from_expiring(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, with_ids("a"))
    (parts(tmp_path)[0].parent / "part-0000.parquet").write_bytes(b"damaged")
    assert purge(tmp_path, now=NOON + 2 * DAY).token_rows == 1
    assert "part-0000.parquet" in caplog.text and "delete it" in caplog.text


def test_one_process_at_a_time_rewrites_files(tmp_path: Path) -> None:
    write(tmp_path, with_ids("a"))
    with only_one(tmp_path) as alone:
        assert alone
        assert tidy(tmp_path, Retention(), NOON + 100 * DAY).requests == 0
    assert ids(tmp_path) == ["a"]
    assert tidy(tmp_path, Retention(), NOON + 100 * DAY).requests == 1


def test_sessions_have_digests_that_only_this_folder_makes(tmp_path: Path) -> None:
    one, again = SessionDigest(tmp_path / "a"), SessionDigest(tmp_path / "a")
    other = SessionDigest(tmp_path / "b")
    assert one.of("user-1") == again.of("user-1") != one.of("user-2")
    assert one.of("user-1") != other.of("user-1")
    assert (tmp_path / "a" / ".session-key").stat().st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".session-key"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=6))
def test_rounds_come_back_in_order(drafts: list[tuple[int, int]]) -> None:
    import tempfile

    rounds = [(drafted, min(drafted, accepted)) for drafted, accepted in drafts]
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), traced("a", *rounds), traced("b", (3, 1)))
        mine = [round for round in read_rounds(Path(name)) if round.request == "a"]
    assert [(round.drafted, round.accepted) for round in mine] == rounds
    assert (KINDS[1], KINDS[0]) == (ROUNDS, REQUESTS)
