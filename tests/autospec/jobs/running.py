"""Jobs for tests, and how to wait for them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.autospec.jobs import JobRecord, JobRunner
from paceline.autospec.store import DrafterStore

WORKER = Path(__file__).with_name("worker.py")
LONGEST = 60.0


def template(steps: int, **fields: object) -> dict[str, Any]:
    """Return the template of a job that counts so far."""
    return {
        "command": ["{python}", "-S", str(WORKER), "{out}", str(steps)],
        "resume": ["--resume"],
        "best": ["{out}/best"],
        "grace_seconds": 5.0,
        **fields,
    }


def until_over(runner: JobRunner, number: int) -> JobRecord:
    """Look after a job until it is over."""
    return until(lambda: runner.poll(number), lambda job: job.state.is_over)


def until(look: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    """Look again and again until something is so; return what was seen then."""
    end = time.monotonic() + LONGEST
    while not is_so(seen := look()):
        assert time.monotonic() < end, f"still {seen}"
        time.sleep(0.02)
    return seen


def journal(folder: Path, number: int = 1) -> list[str]:
    """Return what the command of a job has noted."""
    file = folder / "jobs" / str(number) / "out" / "journal"
    return file.read_text().split() if file.exists() else []


def end_all(folder: Path) -> None:
    """Stop every job of a store, so that no test leaves a process behind."""
    with DrafterStore(folder) as store:
        runner = JobRunner(store)
        for job in runner.active():
            runner.stop(job.id, "the test is over")
            until_over(runner, job.id)


def kill_supervisor(runner: JobRunner, number: int) -> None:
    """Kill a job's supervisor once it runs."""
    job = until(lambda: runner.poll(number), lambda job: job.pid is not None)
    os.kill(job.pid, signal.SIGKILL)
