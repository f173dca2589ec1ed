"""The writer of traces: it never waits, drops and counts, stops on a full disk and resumes."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.dataset.traces import writer as writer_module
from paceline.dataset.traces.folder import SessionDigest
from paceline.dataset.traces.reader import read_requests, read_rounds
from paceline.dataset.traces.records import Traced
from paceline.dataset.traces.writer import Make, TraceWriter

from .traced import traced


class Disk(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PAUSE", 0.001)
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.02)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., TraceWriter]]:
    writers = []

    def start(folder: Path = tmp_path, flush_seconds: float = 0.01) -> TraceWriter:
        made = TraceWriter(folder, flush_seconds=flush_seconds)
        writers.append(made)
        return made

    yield start
    for made in writers:
        made.close()


def make(id: str, **fields: Any) -> Make:
    def made(digest: SessionDigest) -> Traced:
        return traced(id, (4, 2), (4, 1), session=digest.of(id), **fields)

    return made


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def ids(folder: Path) -> set[str]:
    return {row.id for row in read_requests(folder)}


def test_answers_are_written_while_the_server_runs(
    started: Callable[..., TraceWriter], tmp_path: Path
) -> None:
    writer = started()
    assert all(writer.offer(make(f"r{index}", app=f"app{index % 3}"), 100) for index in range(30))
    until(lambda: writer.counts.written == 30)
    assert ids(tmp_path) == {f"r{index}" for index in range(30)}
    assert len(list(read_rounds(tmp_path))) == 60
    assert {path.name for path in (tmp_path / "rounds").glob("*/*")} == {
        "app=app0", "app=app1", "app=app2",
    }  # fmt: skip
    assert (writer.counts.dropped, writer.counts.failed) == (0, 0)


def test_closing_writes_what_waits(started: Callable[..., TraceWriter], tmp_path: Path) -> None:
    writer = started(flush_seconds=3600)
    for index in range(200):
        writer.offer(make(f"r{index}"), 100)
    writer.close()
    assert writer.counts.written == 200 == len(ids(tmp_path))
    assert not writer.offer(make("late"), 100) and writer.counts.dropped == 1


def test_what_is_too_much_is_dropped_and_counted_at_once(
    started: Callable[..., TraceWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MOST_WAITING", 1000)
    held, entered = threading.Event(), threading.Event()

    def slow(digest: SessionDigest) -> Traced:
        entered.set()
        held.wait(20)
        return traced("slow")

    writer = started()
    assert writer.offer(slow, 100)
    assert entered.wait(20)
    taken = [writer.offer(make(f"r{index}"), 100) for index in range(50)]
    assert sum(taken) == 10 and taken[:10] == [True] * 10, "1000 bytes wait, and no more"
    assert writer.counts.dropped == 40
    held.set()
    until(lambda: writer.counts.written == 11)
    assert ids(tmp_path) == {"slow", *(f"r{index}" for index in range(10))}


def test_an_answer_that_cannot_be_made_harms_no_other(
    started: Callable[..., TraceWriter], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(digest: SessionDigest) -> Traced:
        raise RuntimeError("no row")

    writer = started()
    for index in range(3):
        writer.offer(broken, 100)
        writer.offer(make(f"r{index}"), 100)
    until(lambda: writer.counts.written == 3)
    assert writer.counts.failed == 3 and len(ids(tmp_path)) == 3
    assert caplog.text.count("could not be recorded") == 1


@pytest.mark.parametrize("fault", ["no room to spare", "no room at all"])
def test_a_full_disk_stops_the_capture_until_there_is_room(
    started: Callable[..., TraceWriter],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    caplog.set_level(logging.INFO)
    writer = started()
    writer.offer(make("before"), 100)
    until(lambda: writer.counts.written == 1)
    with monkeypatch.context() as broken:
        if fault == "no room to spare":
            broken.setattr(shutil, "disk_usage", lambda _: Disk(2**40, 2**40 - 10**6, 10**6))
        else:

            def full(*_: object, **__: object) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            broken.setattr("paceline.dataset.traces.folder.write_whole", full)
            broken.setattr(Path, "write_bytes", full)
        writer.offer(make("held"), 100)
        until(lambda: not writer.counts.capturing)
        assert not any(writer.offer(make(f"lost{index}"), 100) for index in range(5))
        time.sleep(0.1)  # several retries
        assert not writer.counts.capturing and writer.counts.dropped == 5
    until(lambda: writer.counts.capturing)
    writer.offer(make("after"), 100)
    until(lambda: writer.counts.written == 3)
    assert ids(tmp_path) == {"before", "held", "after"}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    assert "serving goes on, nothing is captured" in lines[0]
    assert "capturing again" in lines[1] and "5 requests were left out" in lines[1]
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"]


def test_a_folder_that_cannot_be_made_stops_nothing_else(
    started: Callable[..., TraceWriter], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    writer = started(tmp_path / "file" / "traces")
    until(lambda: not writer.counts.capturing)
    assert not writer.offer(make("a"), 100)
    (tmp_path / "file").unlink()
    until(lambda: writer.counts.capturing)
    writer.offer(make("b"), 100)
    until(lambda: writer.counts.written == 1)
    assert ids(tmp_path / "file" / "traces") == {"b"}


KILLED = """
import sys, time
from pathlib import Path
from tests.dataset.traced import traced
from paceline.dataset.traces import writer as module
module.PAUSE = 0.0005
writer = module.TraceWriter(Path(sys.argv[1]), flush_seconds=0.001)
index = 0
while True:
    made = traced(f"r{index}", *[(4, 2)] * 20, prompt_ids=[1] * 500, output_ids=[2] * 60)
    writer.offer(lambda digest, made=made: made, 1000)
    index += 1
    if index == 20:
        print("running", flush=True)
    time.sleep(0.0002)
"""


@pytest.mark.parametrize(
    "delay", [0.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.013, 0.05, 0.171))]
)
def test_a_kill_leaves_complete_files_only(tmp_path: Path, delay: float) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "running\n"
        # The thread has the lowest priority: on a busy machine it waits for the other tests.
        until(lambda: any((tmp_path / "requests").rglob("*.parquet")), seconds=200)
        time.sleep(delay)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(20)
    rows = list(read_requests(tmp_path))
    rounds = [round.request for round in read_rounds(tmp_path)]
    assert rows and len({row.id for row in rows}) == len(rows), "complete, and nothing twice"
    assert all(rounds.count(row.id) == 20 for row in rows[:50]), "a request has all its rounds"


def test_memory_is_bounded_while_nothing_can_be_written(
    started: Callable[..., TraceWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10, 10, 0))
    writer = started()
    until(lambda: not writer.counts.capturing)
    for _ in range(10_000):
        writer.offer(make("a"), 1_000_000)
    assert writer.counts.dropped == 10_000
    assert not any(tmp_path.rglob("*.parquet"))
