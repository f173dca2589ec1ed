"""Processes that share a cache: one fills an entry, and what a killed one left is cleared."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.core import cache as cache_module
from paceline.core.cache import cached_folder
from paceline.core.checksums import damage

from .cache_entries import Maker
from .cache_entries import entry as entry

FILL = """
import sys, time
from pathlib import Path
from paceline.core.cache import cached_folder
entry, seconds = Path(sys.argv[1]), float(sys.argv[2])
def fill(folder):
    print("filling", flush=True)
    (folder / "weights.bin").write_bytes(b"w" * 1000)
    time.sleep(seconds)
cached_folder(entry, fill)
print("ready", flush=True)
"""


def process(entry: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FILL, str(entry), str(seconds)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def wait_for_line(job: subprocess.Popen[str], line: str) -> None:
    assert job.stdout is not None and job.stdout.readline().strip() == line


def test_two_processes_do_the_work_once_and_the_second_says_that_it_waits(entry: Path) -> None:
    first = process(entry, 5)
    wait_for_line(first, "filling")
    second = process(entry, 0)
    said, complained = second.communicate(timeout=60)
    assert said.split() == ["ready"]  # it never filled
    assert f"waiting for process {first.pid}" in complained and str(entry) in complained
    assert first.communicate(timeout=60)[0].split() == ["ready"]
    assert os.listdir(entry.parent) == [entry.name]


def test_a_waiting_process_takes_over_from_a_killed_one(entry: Path) -> None:
    first = process(entry, 600)
    wait_for_line(first, "filling")
    second = process(entry, 0)
    time.sleep(1)
    assert second.poll() is None
    first.kill()
    first.wait()
    assert second.communicate(timeout=60)[0].split() == ["filling", "ready"]
    assert damage(entry) is None and os.listdir(entry.parent) == [entry.name]


def test_what_a_killed_process_left_is_cleared_by_a_start_with_another_model(
    entry: Path,
) -> None:
    killed, alive = process(entry, 600), process(entry.with_name("other"), 600)
    try:
        for job in (killed, alive):
            wait_for_line(job, "filling")
        killed.kill()
        killed.wait()
        assert len(os.listdir(entry.parent)) == 2
        cached_folder(entry.with_name("third"), Maker())
        left = sorted(os.listdir(entry.parent))
        assert len(left) == 2 and left[0].startswith(".other.") and left[1] == "third"
    finally:
        alive.kill()
        alive.communicate()


def test_what_older_versions_left_is_cleared_at_a_day_and_models_with_such_names_stay(
    entry: Path,
) -> None:
    cached_folder(entry, Maker())
    left = [".fetch.a1b2c3d4", ".smollm2-135m-b179c952-1.abcd_123", "tmp0123abcd", f"{'a' * 24}.77"]
    stays = ["qwen2.5-0.5b-0123456789abcdef", "tmp-model-0123456789abcdef", ".m-0123456789abcdef"]
    stays += [f"{'b' * 24}.json", "int8-58f75025111e5c09.json"]
    for name in [*left, *stays]:
        (entry.parent / name).mkdir()
    cached_folder(entry, Maker())
    assert sorted(os.listdir(entry.parent)) == sorted([*left, *stays, entry.name])
    for name in [*left, *stays]:
        (entry.parent / name / "file").write_bytes(b"x")
        os.utime(entry.parent / name, (time.time() - 90_000,) * 2)
    cached_folder(entry, Maker())
    assert sorted(os.listdir(entry.parent)) == sorted([*stays, entry.name])


def test_a_file_system_without_locks_still_serves(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    entry.parent.mkdir(parents=True)
    others = entry.with_name(f".{entry.name}.abcdefgh{cache_module.UNFINISHED}")
    others.mkdir()  # its process may live: nothing tells
    cached_folder(entry, Maker())
    assert damage(entry) is None and others.is_dir()
