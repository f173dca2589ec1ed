"""The jobs in a store: their states, and the statements that change them."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from paceline.autospec.jobs.template import SECONDS_PER_HOUR, JobPlan
from paceline.autospec.store.database import StoreDatabase
from paceline.core import InvalidRequest


class JobState(StrEnum):
    """The state of a job.

    queued     it is in the store, and nothing of it has started
    running    it was started, and its end is not known yet
    finished   its command ended well
    failed     its command ended with an error, or died too often
    stopped    its budget was used up, or somebody stopped it; its best checkpoint is kept
    """

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        """Return whether the job will not run any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the store has it.

    `purpose` is what it is for: of one purpose one job runs at a time. `label` is its name on
    clusters. `spent` are the seconds of its earlier starts, `attempt` counts the starts. `stop` is
    why somebody asked it to end; `checkpoint` is the best that it left. Times are in seconds since
    1970; `heartbeat` is when it was last seen running.
    """

    id: int
    purpose: str
    label: str
    state: JobState
    plan: JobPlan
    attempt: int
    spent: float
    created: float
    started: float | None
    heartbeat: float | None
    ended: float | None
    pid: int | None
    stop: str | None
    exit_code: int | None
    checkpoint: str | None
    reason: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the job of a row of the store."""
        values = {name: row[name] for name in row.keys()}  # noqa: SIM118 - a Row is no mapping
        values["state"] = JobState(row["state"])
        values["plan"] = JobPlan(**json.loads(row["plan"]))
        return cls(**values)

    @property
    def cost(self) -> float:
        """Return what the job has cost so far."""
        return self.spent / SECONDS_PER_HOUR * self.plan.cost_per_hour


def add(database: StoreDatabase, purpose: str, plan: JobPlan) -> JobRecord:
    """Add a job, queued. Raises InvalidRequest where one for the same purpose is not over."""
    with database.transaction() as connection:
        for job in jobs(database, "WHERE purpose = ? AND ended IS NULL", purpose):
            expected = f"a purpose of no other job; job {job.id} is {job.state}"
            raise InvalidRequest("purpose", purpose, expected)
        cursor = connection.execute(
            """INSERT INTO jobs(purpose, label, state, plan, attempt, spent, created, reason)
                VALUES (?, ?, ?, ?, 0, 0, ?, '')""",
            (purpose, f"paceline-{uuid.uuid4().hex[:12]}", JobState.QUEUED,
             json.dumps(plan.as_json()), time.time()),
        )  # fmt: skip
        number = cursor.lastrowid
    return job_of(database, number or 0)


def jobs(database: StoreDatabase, where: str = "", *values: object) -> list[JobRecord]:
    """Return jobs, the earliest first; `where` is a clause of SQL."""
    rows = database.rows(f"SELECT * FROM jobs {where} ORDER BY id", values)
    return [JobRecord.of(row) for row in rows]


def job_of(database: StoreDatabase, number: int) -> JobRecord:
    """Return a job by its number. Raises InvalidRequest."""
    found = jobs(database, "WHERE id = ?", number)
    if not found:
        raise InvalidRequest("job", number, "the number of a job in this store")
    return found[0]


def change(database: StoreDatabase, job: JobRecord, **values: object) -> JobRecord:
    """Change fields of a job that is not over, in one transaction. Return it as it is then; a job
    that is over stays as it is."""
    names = ", ".join(f"{name} = ?" for name in values)
    with database.transaction() as connection:
        connection.execute(
            f"UPDATE jobs SET {names} WHERE id = ? AND ended IS NULL", (*values.values(), job.id)
        )
    return job_of(database, job.id)
