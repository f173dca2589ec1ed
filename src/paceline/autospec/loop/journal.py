"""What the loop keeps in the store: its decisions, and the changes that it makes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from paceline.autospec.canary import CanaryState
from paceline.autospec.drift import FallenCohort
from paceline.autospec.loop.decide import LoopAction, LoopDecision
from paceline.autospec.loop.seen import SeenCohort
from paceline.autospec.store import DrafterStore
from paceline.core.document_help import about
from paceline.core.documents import Document

LISTED = 1000  # decisions, and changes that are over, that are read at once


class ChangeOrigin(StrEnum):
    """Why a change was begun."""

    DRIFT = "drift"  # a cohort's acceptance fell
    GROWTH = "growth"  # a cohort without a drafter of its own became a large part of the traffic
    RENEWAL = "renewal"  # a live corpus is about to expire
    WEIGHTS = "weights"  # a corpus was not enough for a cohort whose acceptance fell
    PUSHED = "pushed"  # somebody promoted a version to canary


class ChangeStage(StrEnum):
    """How far a change has come."""

    BUILDING = "building"  # its corpus is built
    TRAINING = "training"  # a job trains its weights
    SCORING = "scoring"  # it is scored on answers that were held out
    LOADING = "loading"  # it is loaded, and drafts for nobody
    CANARY = "canary"  # it drafts for a share of the requests
    LIVE = "live"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        return self in (ChangeStage.LIVE, ChangeStage.STOPPED)


class ChangeFall(Document):
    """The fall of a cohort's acceptance for which a change was begun."""

    share: float = about("share of all rounds that the cohort has")
    before: float = about("AL before the fall")
    now: float = about("AL when the change was begun")


class ChangeProgress(Document):
    """What a change has found out so far."""

    fall: ChangeFall | None = about("the fall that it is for", None)
    gain: float | None = about("measured gain over the version that it replaces, as a share", None)
    synthetic: str | None = about("the synthetic set that it learns from", None)
    job: int | None = about("the job that trains its weights", None)
    canary: CanaryState | None = about("the canary under way", None)
    score: str = about("what its score said", "")
    straight: bool = about("whether it goes live without a canary", False)
    hold: list[str] = about(
        "what it waits for: room on the server, or what the canary still lacks", list
    )


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One attempt to replace a cohort's drafter. Times are seconds since the epoch."""

    id: int
    cohort: str
    origin: ChangeOrigin
    version: str
    replaces: str
    stage: ChangeStage
    progress: ChangeProgress
    created: float
    changed: float
    ended: float | None
    reason: str

    @classmethod
    def of(cls, row: sqlite3.Row) -> Self:
        """Return the change of a row of the store."""
        values = dict(zip(row.keys(), row, strict=True))
        values["origin"] = ChangeOrigin(values["origin"])
        values["stage"] = ChangeStage(values["stage"])
        values["progress"] = ChangeProgress.read(json.loads(values["progress"]), "progress")
        return cls(**values)

    @property
    def percent(self) -> float:
        """The share of the cohort's requests that it drafts for, in percent."""
        canary = self.progress.canary
        return canary.percent if self.stage is ChangeStage.CANARY and canary else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return plain values for people and programs, without the sums of the canary."""
        told = {name: getattr(self, name) for name in ("id", "cohort", "version", "replaces")}
        times = {name: getattr(self, name) for name in ("created", "changed", "ended", "reason")}
        return {
            **told, "origin": str(self.origin), "stage": str(self.stage), "percent": self.percent,
            "score": self.progress.score, "hold": self.progress.hold, **times,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class NotedDecision:
    """A decision, when it was first and last made, and when it no longer was."""

    id: int
    decision: LoopDecision
    noted: float
    seen: float
    ended: float | None

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"id": self.id, **self.decision.as_json(), "noted": self.noted, "seen": self.seen,
                "ended": self.ended}  # fmt: skip


class LoopJournal:
    """The decisions and changes of a store."""

    def __init__(self, store: DrafterStore) -> None:
        self._store, self._database = store, store.database

    def note(self, decisions: Sequence[LoopDecision], now: float) -> None:
        """Note what was decided. A decision that is made again lasts on, with its latest numbers;
        one that is not has ended."""
        keys = [_key(decision) for decision in decisions]
        with self._database.transaction() as connection:
            lasting = {
                (row["kind"], row["action"], row["cohorts"]): row["id"]
                for row in connection.execute("SELECT * FROM decisions WHERE ended IS NULL")
            }
            for key in lasting.keys() - set(keys):
                sql = "UPDATE decisions SET ended = ? WHERE id = ?"
                connection.execute(sql, (now, lasting[key]))
            for key, decision in dict(zip(keys, decisions, strict=True)).items():
                texts = json.dumps(decision.why), json.dumps(decision.why_not)
                values = (now, decision.gain, decision.cost, *texts)
                if key in lasting:
                    sql = "UPDATE decisions SET seen = ?, gain = ?, cost = ?, why = ?, why_not = ?"
                    connection.execute(f"{sql} WHERE id = ?", (*values, lasting[key]))
                else:
                    sql = """INSERT INTO decisions(kind, action, cohorts, start, noted, seen, gain,
                        cost, why, why_not) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
                    connection.execute(sql, (*key, decision.start, now, *values))

    def decisions(self, *, lasting: bool = False) -> list[NotedDecision]:
        """Return the latest decisions, the newest first, or those alone that last."""
        where = "WHERE ended IS NULL" if lasting else ""
        sql = f"SELECT * FROM decisions {where} ORDER BY id DESC LIMIT {LISTED}"
        return [_decision_of(row) for row in self._database.rows(sql)]

    def see(self, cohorts: Sequence[SeenCohort]) -> None:
        """Keep what a turn saw of each cohort, in place of what an earlier one did."""
        columns = [field.name for field in fields(SeenCohort)]
        marks = ", ".join("?" * len(columns))
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM seen_cohorts")
            connection.executemany(
                f"INSERT INTO seen_cohorts({', '.join(columns)}) VALUES ({marks})",
                [astuple(cohort) for cohort in cohorts],
            )

    def seen(self) -> list[SeenCohort]:
        """Return what the last turn saw of each cohort."""
        rows = self._database.rows("SELECT * FROM seen_cohorts ORDER BY cohort")
        return [SeenCohort.of(row) for row in rows]

    def begin(
        self,
        cohort: str,
        origin: ChangeOrigin,
        replaces: str,
        now: float,
        version: str = "",
        fallen: FallenCohort | None = None,
    ) -> None:
        """Begin a change, unless the cohort has one. Without a `version` it gets one by a name of
        its own, which is built or trained first."""
        trained = origin is ChangeOrigin.WEIGHTS
        making = ChangeStage.TRAINING if trained else ChangeStage.BUILDING
        stage = ChangeStage.LOADING if version else making
        fall = None
        if fallen is not None:
            fall = ChangeFall(share=fallen.share, before=fallen.before, now=fallen.now)
        progress = ChangeProgress(fall=fall).model_dump_json()
        with self._database.transaction() as connection:
            sql = "SELECT 1 FROM changes WHERE cohort = ? AND ended IS NULL"
            if connection.execute(sql, (cohort,)).fetchone():
                return
            sql = """INSERT INTO changes(cohort, origin, version, replaces, stage, progress,
                created, changed, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')"""
            values = (cohort, origin, version, replaces, stage, progress, now, now)
            number = connection.execute(sql, values).lastrowid
            if not version:
                name = self._free_name(f"auto-{number}")
                sql = "UPDATE changes SET version = ? WHERE id = ?"
                connection.execute(sql, (name, number))

    def update(
        self, change: ChangeRecord, now: float, stage: ChangeStage, reason: str = "", **found: Any
    ) -> None:
        """Note how far a change has come, and what was found out (fields of its progress)."""
        progress = change.progress.model_copy(update=found)
        ended = now if stage.is_over else None
        with self._database.transaction() as connection:
            connection.execute(
                """UPDATE changes SET stage = ?, progress = ?, changed = ?, ended = ?, reason = ?
                    WHERE id = ? AND ended IS NULL""",
                (stage, progress.model_dump_json(), now, ended, reason, change.id),
            )

    def active(self) -> list[ChangeRecord]:
        """Return the changes under way, the earliest first."""
        sql = "SELECT * FROM changes WHERE ended IS NULL ORDER BY id"
        return [ChangeRecord.of(row) for row in self._database.rows(sql)]

    def changes(self) -> list[ChangeRecord]:
        """Return the latest changes, those that are over among them, the newest first."""
        sql = f"SELECT * FROM changes ORDER BY id DESC LIMIT {LISTED}"
        return [ChangeRecord.of(row) for row in self._database.rows(sql)]

    def services(self) -> list[Mapping[str, Any]]:
        """Return who served which cohort since when, the earliest first."""
        sql = "SELECT cohort, name, started, ended FROM services ORDER BY id"
        return [dict(row) for row in self._database.rows(sql)]

    def _free_name(self, name: str) -> str:
        while self._store.find(name) is not None:
            name += "x"
        return name


def _key(decision: LoopDecision) -> tuple[str, str, str]:
    return str(decision.kind), str(decision.action), json.dumps(sorted(decision.cohorts))


def _decision_of(row: sqlite3.Row) -> NotedDecision:
    decision = LoopDecision(
        kind=row["kind"],
        action=LoopAction(row["action"]),
        cohorts=tuple(json.loads(row["cohorts"])),
        start=row["start"],
        gain=row["gain"],
        cost=row["cost"],
        why=tuple(json.loads(row["why"])),
        why_not=tuple(json.loads(row["why_not"])),
    )
    return NotedDecision(row["id"], decision, row["noted"], row["seen"], row["ended"])
