"""Start jobs, find them again, and stop them, whoever was killed meanwhile.

A job's folder in the store has a lock that the supervisor and the command of a start hold together.
Whoever holds the lock in their place knows that nothing of the job runs, and may finish it or start
it again; so no job ever runs twice at once.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.autospec.jobs import supervisor
from paceline.autospec.jobs.records import JobRecord, JobState, add, change, job_of, jobs
from paceline.autospec.jobs.template import JobTemplate, Values, fill, parse_cpus
from paceline.autospec.processes import is_running, processes_with
from paceline.autospec.store.database import StoreError
from paceline.autospec.store.store import DrafterStore

log = logging.getLogger(__name__)
FOLDER, LOCK, LOG, OUT = "jobs", "lock", "log.txt", "out"
MARK = "PACELINE_JOB"  # a variable of every process of a job, by which what is left is found
START_SECONDS = 10.0  # that a supervisor gets to come up
POLL_SECONDS = 0.02
CANCEL_SECONDS = 600.0


class JobRunner:
    """The jobs of a store. Nothing here runs by itself: `poll` looks after a job, and does all that
    is due, after a kill as well."""

    def __init__(self, store: DrafterStore) -> None:
        self._database, self._folder = store.database, store.folder / FOLDER

    def start(
        self,
        template: JobTemplate,
        purpose: str,
        values: Values,
        *,
        seconds: float | None = None,
        cost: float | None = None,
    ) -> JobRecord:
        """Start a job and return it. `seconds` and `cost` replace the template's budget.

        Raises InvalidRequest where a job for the same purpose is not over, and for a place of the
        template that no value fills.
        """
        plan = template.plan(values, seconds=seconds, cost=cost)
        return self.poll(add(self._database, purpose, plan).id)

    def poll(self, number: int) -> JobRecord:
        """Look after a job and return it: start it if it has not started, see that it runs, start
        it again if it died, finish it if it has ended."""
        job = job_of(self._database, number)
        if job.state.is_over:
            return job
        with self._worded(job), self._held_lock(job) as lock:
            if lock is None:
                return self._watch(job_of(self._database, number))
            return self._settle(job_of(self._database, number), lock)

    def stop(self, number: int, reason: str) -> JobRecord:
        """Ask a job to end, and keep its best checkpoint. `poll` tells when it has ended."""
        change(self._database, job_of(self._database, number), stop=reason)
        return self.poll(number)

    def active(self) -> list[JobRecord]:
        """Return the jobs that are not over."""
        return jobs(self._database, "WHERE ended IS NULL")

    def all(self) -> list[JobRecord]:
        """Return every job of the store, the earliest first."""
        return jobs(self._database)

    def folder(self, job: JobRecord) -> Path:
        """Return the folder of a job, with its log."""
        return self._folder / str(job.id)

    def out(self, job: JobRecord) -> Path:
        """Return the folder for what a job makes: below its own, unless its values say
        otherwise."""
        return Path(job.plan.values.get(OUT) or self.folder(job) / OUT)

    def log_file(self, job: JobRecord) -> Path:
        """Return the file with what the command has printed."""
        return self.folder(job) / LOG

    # -- nothing of the job runs: the lock is ours ------------------------------------------------

    def _settle(self, job: JobRecord, lock: int) -> JobRecord:
        """Do what is due with a job of which nothing runs."""
        if job.state.is_over:  # somebody else was here first
            return job
        _kill_all(job)
        end = _read(self._attempt(job) / "exit.json") if job.attempt else None
        if end is not None:
            return self._finish(job, end)
        job = self._after_death(job) if job.attempt else job
        if job.state.is_over:
            return job
        if job.stop is not None:
            return self._over(job, JobState.STOPPED, job.stop)
        return self._launch(job, lock)

    def _finish(self, job: JobRecord, end: dict[str, object]) -> JobRecord:
        """Note how the command of a job has ended."""
        code, stopped = int(str(end["code"])), end["stopped"]
        spent = job.spent + float(str(end["seconds"]))
        if stopped is not None:
            budget = f"its budget of {job.plan.seconds:.0f} s was used up"
            reason = budget if stopped == "budget" else job.stop or "its supervisor was told to end"
            return self._over(job, JobState.STOPPED, reason, code=code, spent=spent)
        if code:
            reason = f"its command ended with exit code {code}; see {self.log_file(job)}"
            return self._over(job, JobState.FAILED, reason, code=code, spent=spent)
        return self._over(job, JobState.FINISHED, "", code=code, spent=spent)

    def _after_death(self, job: JobRecord) -> JobRecord:
        """Note that a start of a job has died without an end; give the job up where it has no
        budget left, or died too often."""
        attempt, spent = self._attempt(job), job.spent
        if (attempt / "pid.json").exists():
            if job.started is not None:
                spent += max(0.0, _mtime(attempt / "alive", job.started) - job.started)
            cancel = fill(job.plan.cancel, job.plan.filled(self.out(job), job.label))
            if cancel:
                _run_to_end(cancel)
        starts = len([*self.folder(job).glob("start-*/start.json")])
        if job.stop is None and spent >= job.plan.seconds + job.plan.queue_seconds:
            reason = f"its budget of {job.plan.seconds:.0f} s was used up"
            return self._over(job, JobState.STOPPED, reason, spent=spent)
        if job.stop is None and starts >= job.plan.attempts:
            reason = f"it died {starts} times; see {self.folder(job)}"
            return self._over(job, JobState.FAILED, reason, spent=spent)
        if job.stop is None:
            log.warning("job %d (%s) has died: starting it again", job.id, job.purpose)
        return change(self._database, job, spent=spent, started=None, pid=None)

    def _launch(self, job: JobRecord, lock: int) -> JobRecord:
        """Start the command under a supervisor, which takes the lock over."""
        again = any(self.folder(job).glob("start-*/pid.json"))
        job = change(
            self._database,
            job,
            state=JobState.RUNNING,
            attempt=job.attempt + 1,
            started=time.time(),
        )
        plan, attempt = job.plan, self._attempt(job)
        values = plan.filled(self.out(job), job.label)
        attempt.mkdir(parents=True, exist_ok=True)
        self.out(job).mkdir(parents=True, exist_ok=True)
        start = {
            "command": [*fill(plan.command, values), *(fill(plan.resume, values) if again else ())],
            "cancel": fill(plan.cancel, values),
            "environment": {**plan.environment, MARK: _mark(job)},
            "seconds": plan.seconds + plan.queue_seconds - job.spent,
            "grace": plan.grace_seconds,
            "nice": plan.nice,
            "cpus": None if plan.cpus is None else parse_cpus(plan.cpus),
            "log": str(self.log_file(job)),
        }
        (attempt / "start.json").write_text(json.dumps(start, indent=1), "utf-8")
        program = [sys.executable, "-S", "-E", supervisor.__file__, str(attempt), str(lock)]
        with (attempt / "supervisor.txt").open("wb") as output:
            process = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C in the terminal is not for the job
            )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            if (attempt / "pid.json").exists():
                break
            time.sleep(POLL_SECONDS)
        return self._watch(job)

    def _over(
        self,
        job: JobRecord,
        state: JobState,
        reason: str,
        *,
        code: int | None = None,
        spent: float | None = None,
    ) -> JobRecord:
        """End a job for good, with the best checkpoint that it has left."""
        places = fill(job.plan.best, job.plan.filled(self.out(job), job.label))
        found = [place for place in places if Path(place).exists()]
        return change(
            self._database,
            job,
            state=state,
            reason=reason,
            exit_code=code,
            ended=time.time(),
            spent=job.spent if spent is None else spent,
            checkpoint=found[0] if found else None,
        )

    # -- something of the job runs -----------------------------------------------------------------

    def _watch(self, job: JobRecord) -> JobRecord:
        """Note that a job runs, and tell it to end where that is asked; end what is left of one
        whose supervisor has ended or was killed."""
        process = _read(self._attempt(job) / "pid.json")
        if process is None:  # the supervisor is coming up
            return job
        pid, started = int(str(process["pid"])), int(str(process["started"]))
        if not is_running(pid, started):
            _reap(pid)
            _kill_all(job)  # what it has left holds the lock
            return job
        if job.stop is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return change(self._database, job, heartbeat=time.time(), pid=pid)

    # -- files -------------------------------------------------------------------------------------

    def _attempt(self, job: JobRecord) -> Path:
        return self.folder(job) / f"start-{job.attempt}"

    @contextmanager
    def _held_lock(self, job: JobRecord) -> Iterator[int | None]:
        """Hold a job's lock and yield its file descriptor; None where somebody has it."""
        self.folder(job).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder(job) / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield descriptor
        finally:
            os.close(descriptor)  # a supervisor that was started keeps it

    @contextmanager
    def _worded(self, job: JobRecord) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"the folder {self.folder(job)} cannot be used ({error.strerror or error})"
            raise StoreError(f"job {job.id} ({job.purpose}): {message}") from error


def _mark(job: JobRecord) -> str:
    """Return what marks the processes of the present start of a job."""
    return f"{job.label}.{job.attempt}"


def _kill_all(job: JobRecord) -> None:
    """Kill what the present start of a job has left."""
    for pid in processes_with(MARK, _mark(job)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _reap(pid: int) -> None:
    """Let a supervisor that has ended leave the table of processes, if this one started it."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _run_to_end(command: list[str]) -> None:
    """Run a command that ends what a job has started elsewhere; what it says is not awaited for
    longer than CANCEL_SECONDS."""
    try:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, timeout=CANCEL_SECONDS, check=False,
            capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", command[0], error)


def _read(path: Path) -> dict[str, object] | None:
    """Return a file of a supervisor; None where there is none yet."""
    try:
        document: dict[str, object] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return document


def _mtime(path: Path, default: float) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return default
