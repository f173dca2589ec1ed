"""Runs an audit: opens the session, plans the checks, asks them one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from paceline.bench.prompts import load_prompts
from paceline.core import InvalidRequest
from paceline.core.documents import checked
from paceline.core.field_types import Between, Several
from paceline.engines.audit.budget import Budget, BudgetSpent
from paceline.engines.audit.check import AuditCheck, Planned, plan
from paceline.engines.audit.checks import CHECKS
from paceline.engines.audit.checks.texts import UNKNOWN_ROUNDING, rounding, rounding_cost
from paceline.engines.audit.findings import (
    AuditedEngine,
    AuditFinding,
    AuditReport,
    CheckResult,
    CheckState,
    Severity,
)
from paceline.engines.audit.session import Session
from paceline.engines.client import EngineClient, EngineError, EngineRefused
from paceline.version import __version__

NAMES = tuple(check.name for check in CHECKS)
Progress = Callable[[str], None]


@checked
class AuditSettings:
    """The questions of an audit. Raises InvalidRequest naming the field.

    prompts   a shipped set or a file
    alpha     chance of a false alarm, of all statistical tests together
    context   tokens of the longest prompt
    seed      of the first request
    only      names of checks; none for all
    """

    prompts: str = "demo"
    alpha: Annotated[float, Between(0, 0.1, open=True)] = 0.001
    context: Annotated[int, Between(256)] = 8192
    seed: Annotated[int, Between(0, 2**31)] = 0
    only: Annotated[tuple[str, ...], Several] = ()
    budget: Budget = Budget()

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in NAMES:
                raise InvalidRequest("only", name, f"a check: one of {', '.join(NAMES)}")

    @property
    def checks(self) -> list[AuditCheck]:
        return [check for check in CHECKS if not self.only or check.name in self.only]


class Audit:
    """One audit of a running server. `plan` says beforehand what will be asked."""

    def __init__(
        self, server: EngineClient, reference: EngineClient | None, settings: AuditSettings
    ) -> None:
        """Open the session: the prompts become token ids, and rounding is measured. Raises
        InvalidRequest, EngineError, and BudgetSpent where the budget does not reach that far."""
        self._settings, self._began = settings, datetime.now(UTC)
        checks = settings.checks
        tests = max(1, sum(check.tests for check in CHECKS))  # all, so that α is the same for few
        self._session = Session.open(
            server,
            reference,
            load_prompts(settings.prompts),
            settings.budget,
            alpha=settings.alpha / tests,
            longest=settings.context,
            seed=settings.seed,
        )
        self._session.tie = _rounding(self._session)
        self.plan = plan(checks, self._session)
        self._results: list[CheckResult] = []
        self._broke_off: str | None = None

    @property
    def judged_by(self) -> str:
        """What answers are judged by, in words."""
        return self._session.reference.words

    def run(self, progress: Progress = lambda name: None) -> AuditReport:
        """Ask all checks of the plan. An engine that is gone ends the audit, and the report says
        so."""
        for planned in self.plan:
            progress(planned.check.name)
            self._results.append(self._result(planned))
        return self.report()

    def interrupt(self, reason: str) -> None:
        """Note that the audit was ended from outside."""
        self._broke_off = reason

    def report(self) -> AuditReport:
        """Return what was found so far."""
        session, settings = self._session, self._settings
        results = [*self._results, *self._open_results()]
        return AuditReport(
            date=self._began.isoformat(timespec="seconds"),
            paceline=__version__,
            engine=_engine(session.server),
            reference=_engine(session.reference.client) if session.reference.is_server else None,
            judged_by=session.reference.words,
            alpha=settings.alpha,
            budget=asdict(settings.budget),
            requests=session.meter.used.requests,
            tokens=session.meter.used.tokens,
            seconds=session.meter.seconds,
            broke_off=self._broke_off,
            checks=results,
        )

    def _open_results(self) -> Iterator[CheckResult]:
        """Yield a result for each check that was not asked any more."""
        for planned in self.plan[len(self._results) :]:
            yield _not_asked(planned, self._broke_off or "not asked yet", CheckState.INCOMPLETE)

    def _result(self, planned: Planned) -> CheckResult:
        if planned.reason is not None:
            return _not_asked(planned, planned.reason, CheckState.LEFT_OUT)
        if self._broke_off is not None:
            return _not_asked(planned, self._broke_off, CheckState.INCOMPLETE)
        meter, before, begin = self._session.meter, self._session.meter.used, time.monotonic()
        state, reason, findings = CheckState.DONE, None, list[AuditFinding]()
        try:
            findings = planned.check.run(self._session, planned.scale)
        except BudgetSpent as error:
            state, reason = CheckState.INCOMPLETE, str(error)
        except EngineRefused as error:
            findings = [_refused(planned.check, error)]
        except EngineError as error:
            findings, reason, state = self._failed(error)
        used = meter.used
        return CheckResult(
            name=planned.check.name,
            asks=planned.check.asks,
            state=state,
            reason=reason,
            requests=used.requests - before.requests,
            tokens=used.tokens - before.tokens,
            seconds=time.monotonic() - begin,
            findings=findings,
        )

    def _failed(self, error: EngineError) -> tuple[list[AuditFinding], str, CheckState]:
        """Tell an engine that is gone, which ends the audit, from one that failed on a request."""
        if not self._session.is_alive():
            self._broke_off = f"{error}; it answers no more"
            return [], self._broke_off, CheckState.INCOMPLETE
        title = f"the engine failed on a request: {error}"
        remedy = "see the engine's log"
        finding = AuditFinding(severity=Severity.FAILURE, title=title, remedy=remedy)
        return [finding], str(error), CheckState.INCOMPLETE


def _rounding(session: Session) -> float:
    if not rounding_cost(session).fits(session.meter.room):
        return UNKNOWN_ROUNDING
    return rounding(session)


def _refused(check: AuditCheck, error: EngineRefused) -> AuditFinding:
    title = f"the server refuses what `{check.name}` needs: {error}"
    return AuditFinding(severity=Severity.NOTE, title=title)


def _not_asked(planned: Planned, reason: str, state: CheckState) -> CheckResult:
    return CheckResult(name=planned.check.name, asks=planned.check.asks, state=state, reason=reason)


def _engine(client: EngineClient) -> AuditedEngine:
    told = client.description
    return AuditedEngine(
        url=client.url,
        kind=told.kind,
        version=told.version,
        model=told.model,
        drafter=told.drafter,
        draft_len=told.draft_len,
    )
