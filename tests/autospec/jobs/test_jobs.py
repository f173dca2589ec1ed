"""Jobs run to their end, to the end of their budget, or until somebody stops them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.autospec.jobs import JobRunner, JobState, JobTemplate
from paceline.autospec.store import DrafterStore
from paceline.core import InvalidRequest
from tests.autospec.jobs.running import (
    end_all,
    journal,
    kill_supervisor,
    template,
    until,
    until_over,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "store"
    DrafterStore(place, create=True).close()
    yield place
    end_all(place)


@pytest.fixture
def runner(folder: Path) -> Iterator[JobRunner]:
    with DrafterStore(folder) as store:
        yield JobRunner(store)


def made(**fields: object) -> JobTemplate:
    return JobTemplate.read(template(3, **fields))


def test_a_job_ends_with_its_log_and_its_checkpoint(runner: JobRunner, folder: Path) -> None:
    job = runner.start(made(), "train app-2", {})
    assert job.state is JobState.RUNNING and runner.active() == [job]
    job = until_over(runner, job.id)
    assert (job.state, job.exit_code, job.reason) == (JobState.FINISHED, 0, "")
    assert runner.log_file(job).read_text() == "step 1\nstep 2\nstep 3\n"
    assert job.checkpoint == str(folder / "jobs" / "1" / "out" / "best")
    assert journal(folder) == ["started", "ended"]
    assert runner.active() == [] and runner.all() == [job]


def test_a_job_steps_back_on_the_cpu(runner: JobRunner) -> None:
    core = max(os.sched_getaffinity(0))
    script = (
        "import os; print(os.nice(0), os.sched_getaffinity(0), os.environ['COLOUR'], "
        "open('/proc/self/autogroup').read().split()[-1])"
    )
    command = JobTemplate.read(
        {
            "command": ["{python}", "-S", "-c", script],
            "nice": 7,
            "cpus": str(core),
            "environment": {"COLOUR": "blue"},
        }
    )
    job = until_over(runner, runner.start(command, "look", {}).id)
    nice, *others, of_session = runner.log_file(job).read_text().split()
    assert nice == of_session == str(min(19, os.nice(0) + 7))
    assert others == [f"{{{core}}}", "blue"]


def test_a_command_that_fails_is_told_with_its_log(runner: JobRunner) -> None:
    command = JobTemplate.read({"command": ["bash", "-c", "echo broken; exit 3"]})
    job = until_over(runner, runner.start(command, "fail", {}).id)
    assert (job.state, job.exit_code) == (JobState.FAILED, 3)
    assert "exit code 3" in job.reason and str(runner.log_file(job)) in job.reason
    assert runner.log_file(job).read_text() == "broken\n"


def test_a_program_that_is_not_there_is_told(runner: JobRunner) -> None:
    command = JobTemplate.read({"command": ["no-such-program"]})
    job = until_over(runner, runner.start(command, "fail", {}).id)
    assert (job.state, job.exit_code) == (JobState.FAILED, 127)
    assert "no-such-program" in runner.log_file(job).read_text()


def test_a_budget_ends_a_job_and_keeps_its_best(runner: JobRunner, folder: Path) -> None:
    job = runner.start(JobTemplate.read(template(100_000)), "train", {}, seconds=0.5)
    job = until_over(runner, job.id)
    assert job.state is JobState.STOPPED and "budget of 0 s" in job.reason
    assert job.checkpoint is not None and int(Path(job.checkpoint).read_text()) > 0
    assert job.spent >= 0.5


def test_a_cost_bounds_a_job_too(runner: JobRunner) -> None:
    endless = JobTemplate.read(template(100_000, cost_per_hour=36.0))
    job = runner.start(endless, "train", {}, cost=0.005)  # half a second
    assert job.plan.seconds == pytest.approx(0.5)
    job = until_over(runner, job.id)
    assert job.state is JobState.STOPPED and job.cost >= 0.005


def test_a_job_is_stopped_with_a_reason(runner: JobRunner, folder: Path) -> None:
    job = runner.start(JobTemplate.read(template(100_000)), "train", {})
    until(lambda: journal(folder), lambda lines: lines == ["started"])
    runner.stop(job.id, "the traffic is back to normal")
    job = until_over(runner, job.id)
    assert (job.state, job.reason) == (JobState.STOPPED, "the traffic is back to normal")
    assert job.checkpoint is not None


def test_a_command_that_does_not_listen_is_killed(runner: JobRunner) -> None:
    deaf = {
        "command": ["bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"],
        "grace_seconds": 0.2,
    }
    job = runner.start(JobTemplate.read(deaf), "deaf", {})
    until(lambda: runner.log_file(job), lambda log: log.exists() and log.read_text() != "")
    runner.stop(job.id, "enough")
    job = until_over(runner, job.id)
    assert (job.state, job.exit_code) == (JobState.STOPPED, 128 + 9)


def test_what_a_job_has_started_elsewhere_is_cancelled(runner: JobRunner, folder: Path) -> None:
    marks = folder / "cancelled"
    cancel = ["bash", "-c", f"echo {{job}} >> {marks}"]
    job = runner.start(JobTemplate.read(template(100_000, cancel=cancel)), "train", {})
    kill_supervisor(runner, job.id)  # it starts again, after what was elsewhere has ended
    job = until(lambda: runner.poll(job.id), lambda job: job.attempt == 2)
    assert marks.read_text().split() == [job.label]
    runner.stop(job.id, "enough")
    until_over(runner, job.id)
    assert marks.read_text().split() == [job.label] * 2


def test_one_purpose_has_one_job_at_a_time(runner: JobRunner) -> None:
    first = runner.start(made(), "train app-2", {})
    with pytest.raises(InvalidRequest, match=r"purpose: got 'train app-2'.*job 1 is running"):
        runner.start(made(), "train app-2", {})
    other = runner.start(made(), "train app-3", {})
    assert until_over(runner, first.id).state is JobState.FINISHED
    again = runner.start(made(), "train app-2", {})
    for job in (other, again):
        assert until_over(runner, job.id).state is JobState.FINISHED


def test_an_ended_job_stays_as_it_is(runner: JobRunner) -> None:
    job = until_over(runner, runner.start(made(), "train", {}).id)
    assert runner.stop(job.id, "late") == job
    with pytest.raises(InvalidRequest, match="job: got 7"):
        runner.poll(7)
