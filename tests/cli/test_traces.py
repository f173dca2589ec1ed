"""`paceline traces`: tables, SQL, JSON, deletion."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from paceline.cli import main, parse
from paceline.cli.traces import PurgeCommand, TracesCommand
from paceline.dataset.traces.reader import read_requests
from tests.dataset.traced import DAY, traced, with_ids, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    now = time.time()
    write(
        tmp_path,
        traced("a", (4, 4), (4, 2), tpot=0.01, time=now, key="team"),
        with_ids("b", (4, 0), (4, 1), language="fr", time=now, expires=now - 1),
    )
    write(tmp_path, traced("c", (4, 3), time=now - 10 * DAY))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["traces", *argv]) == 0
    return capsys.readouterr().out


def test_tables_by_cohort_and_by_day(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, str(folder))
    german = next(line for line in shown.splitlines() if " de " in line)
    assert german.split()[:2] == ["shop", "de"] and "4.00" in german and "60%" in german
    assert "eu" not in shown, "a part that is the same everywhere is left out"
    assert sum(line.strip().startswith("20") for line in shown.splitlines()) == 2, "days"
    one = run(capsys, str(folder), "--by", "drafter", "--days", "2")
    assert "drafter" in one and "day" not in one


def test_json_and_sql(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by = json.loads(run(capsys, str(folder), "--json"))
    assert set(by) == {"cohort", "day"} and len(by["day"]) == 2
    (row,) = json.loads(run(capsys, str(folder), "--by", "cohort", "--days", "0.5", "--json"))[1:]
    assert row["requests"] == 1 and row["al"] > 1
    sql = "SELECT id, accepted FROM requests ORDER BY id"
    rows = json.loads(run(capsys, str(folder), "--sql", sql, "--json"))
    assert rows[0] == {"id": "a", "accepted": 6} and len(rows) == 3
    assert "accepted" in run(capsys, str(folder), "--sql", sql)


def test_no_request_in_this_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, traced("a"))
    assert "no request in this time" in run(capsys, str(tmp_path), "--days", "1")


def test_purging(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "purge", str(folder)) == (
        "deleted 0 requests, the token ids of 1 others, and 0 files\n"
    )
    assert "deleted 1 requests" in run(capsys, "purge", str(folder), "--key", "team")
    assert "deleted 1 requests" in run(capsys, "purge", str(folder), "--keep", "5")
    assert [row.id for row in read_requests(folder)] == ["b"]


def test_a_folder_stands_for_showing_it() -> None:
    assert isinstance(parse(["traces", "x"]), TracesCommand)
    assert isinstance(parse(["traces", "--json", "x"]), TracesCommand)
    assert isinstance(parse(["traces", "purge", "x"]), PurgeCommand)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["{}"], "traces: got .*a folder that `paceline serve --traces` wrote"),
        (["purge", "{}/nothing"], "traces: got .*a folder that"),
        (["{}", "--by", "day", "--sql", "SELECT 1"], "by: got 'day'; expected no value beside"),
        (["{}", "--days", "-1"], "days: got -1"),
    ],
)
def test_wrong_uses_say_what_is_right(
    tmp_path: Path, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["traces", *(word.format(tmp_path) for word in argv)]) == 2
    assert re.search(said, capsys.readouterr().err)
