"""A job outlives `kill -9` of whoever started it, and is started again where it was killed itself;
it never runs twice at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.autospec.jobs import JobRunner, JobState, JobTemplate
from paceline.autospec.store import DrafterStore
from tests.autospec.jobs.running import (
    end_all,
    journal,
    kill_supervisor,
    template,
    until,
    until_over,
)
from tests.autospec.store.killed import killed_after, killed_at
from tests.orphans import is_alive

MOST_POINTS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "store"
    DrafterStore(place, create=True).close()
    yield place
    end_all(place)


def judge(folder: Path, number: int, *, starts: tuple[list[str], ...]) -> None:
    """Look after a job to its end; it has done all of its work, and never twice at once."""
    with DrafterStore(folder) as store:
        job = until_over(JobRunner(store), number)
        assert job.state is JobState.FINISHED and job.checkpoint is not None
        assert Path(job.checkpoint).read_text() == "5"
    assert journal(folder, number) in starts


def test_a_runner_that_is_killed_while_it_starts_a_job_loses_nothing(folder: Path) -> None:
    number = 0
    for point in range(MOST_POINTS):
        purpose = f"train {point}"
        was_killed = killed_at(point, folder, "start_job", template(5), purpose, files=True)
        with DrafterStore(folder) as store:
            found = [job for job in JobRunner(store).all() if job.purpose == purpose]
        if found:
            number += 1
            assert [job.id for job in found] == [number]
            judge(folder, number, starts=(["started", "ended"],))
        if not was_killed:
            assert found and point > 10
            return
    raise AssertionError("starting a job has more points than were tried")


def test_a_runner_that_is_killed_while_it_finishes_a_job_finishes_it_later(folder: Path) -> None:
    for point in range(MOST_POINTS):
        killed_after(folder, "start_job", template(5), f"train {point}")
        number = point + 1
        until(lambda: ended(folder, number), bool)  # noqa: B023
        was_killed = killed_at(point, folder, "poll_job", number, files=True)
        judge(folder, number, starts=(["started", "ended"],))
        if not was_killed:
            assert point >= 4
            return
    raise AssertionError("finishing a job has more points than were tried")


def test_a_runner_that_is_killed_while_it_stops_a_job_does_not_forget(folder: Path) -> None:
    for point in range(MOST_POINTS):
        killed_after(folder, "start_job", template(100_000), f"train {point}")
        number = point + 1
        until(lambda: journal(folder, number), bool)  # noqa: B023
        was_killed = killed_at(point, folder, "stop_job", number, files=True)
        with DrafterStore(folder) as store:
            runner = JobRunner(store)
            job = runner.poll(number)
            if job.stop is None:
                assert was_killed and job.state is JobState.RUNNING
                runner.stop(number, "enough")
            job = until_over(runner, number)
        assert (job.state, job.reason) == (JobState.STOPPED, "enough")
        assert journal(folder, number) == ["started"]
        if not was_killed:
            assert point >= 4
            return
    raise AssertionError("stopping a job has more points than were tried")


def test_a_job_whose_runner_is_gone_is_found_again(folder: Path) -> None:
    killed_after(folder, "start_job", template(40), "train")
    with DrafterStore(folder) as store:
        runner = JobRunner(store)
        job = until(lambda: runner.poll(1), lambda job: job.heartbeat is not None)
        assert job.state is JobState.RUNNING and job.attempt == 1
        assert until_over(runner, 1).state is JobState.FINISHED
    assert journal(folder) == ["started", "ended"]


def test_a_job_that_is_killed_goes_on_from_where_it_was(folder: Path) -> None:
    with DrafterStore(folder) as store:
        runner = JobRunner(store)
        runner.start(JobTemplate.read(template(60)), "train", {})
        steps = folder / "jobs" / "1" / "out" / "best"
        until(lambda: steps.exists() and int(steps.read_text()) > 5, bool)
        kill_supervisor(runner, 1)
        job = until_over(runner, 1)
        assert job.state is JobState.FINISHED and job.attempt == 2
        assert runner.log_file(job).read_text().count("step 3\n") == 1  # nothing was done again
    assert journal(folder) == ["started", "resumed", "ended"]


def test_both_may_be_killed(folder: Path) -> None:
    killed_after(folder, "start_job", template(60), "train")
    until(lambda: journal(folder), bool)
    with DrafterStore(folder) as store:
        kill_supervisor(JobRunner(store), 1)
    with DrafterStore(folder) as store:
        assert until_over(JobRunner(store), 1).state is JobState.FINISHED
    assert journal(folder) == ["started", "resumed", "ended"]


def test_what_a_killed_job_has_left_running_is_ended_before_it_starts_again(folder: Path) -> None:
    script = (
        "(trap '' TERM HUP; setsid sleep 300 & echo $! >> {out}/children; wait) & "
        "while :; do sleep 0.05; done"
    )
    command = {"command": ["bash", "-c", script], "best": ["{out}"], "attempts": 5}
    children = folder / "jobs" / "1" / "out" / "children"
    with DrafterStore(folder) as store:
        runner = JobRunner(store)
        runner.start(JobTemplate.read(command), "train", {})
        until(lambda: children.exists() and children.read_text().split(), bool)
        kill_supervisor(runner, 1)
        until(lambda: (runner.poll(1), children.read_text().split())[1], lambda all: len(all) == 2)
        first, second = map(int, children.read_text().split())
        until(lambda: is_alive(first), lambda alive: not alive)
        assert is_alive(second)
        runner.stop(1, "enough")
        until_over(runner, 1)
        until(lambda: is_alive(second), lambda alive: not alive)


def test_a_job_that_dies_each_time_is_given_up(folder: Path) -> None:
    with DrafterStore(folder) as store:
        runner = JobRunner(store)
        runner.start(JobTemplate.read(template(100_000, attempts=2)), "train", {})
        until((folder / "jobs" / "1" / "out" / "best").exists, bool)
        for attempt in (1, 2):
            until(lambda: runner.poll(1), lambda job: job.attempt == attempt)  # noqa: B023
            kill_supervisor(runner, 1)
            until(
                lambda: runner.poll(1),
                lambda job: job.attempt != attempt or job.state.is_over,  # noqa: B023
            )
        job = until_over(runner, 1)
    assert job.state is JobState.FAILED and "it died 2 times" in job.reason
    assert job.checkpoint is not None


def ended(folder: Path, number: int) -> bool:
    return (folder / "jobs" / str(number) / "start-1" / "exit.json").exists()


def test_a_supervisor_that_is_stopped_is_not_taken_for_dead(folder: Path) -> None:
    with DrafterStore(folder) as store:
        runner = JobRunner(store)
        runner.start(JobTemplate.read(template(30)), "train", {})
        job = until(lambda: runner.poll(1), lambda job: job.pid is not None)
        os.kill(job.pid, signal.SIGSTOP)
        assert [runner.poll(1).attempt for _ in range(5)] == [1] * 5
        os.kill(job.pid, signal.SIGCONT)
        assert until_over(runner, 1).state is JobState.FINISHED
    assert journal(folder) == ["started", "ended"]
