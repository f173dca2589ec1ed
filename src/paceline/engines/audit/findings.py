"""What an audit says: findings of checks, and the document that holds them all."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from paceline.core.documents import Document

FORMAT: Final = "paceline-audit/1"
OK, FOUND, INCOMPLETE = 0, 1, 3  # exit statuses


class Severity(StrEnum):
    """How bad a finding is. A note says what could not be asked or what to know."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


class CheckState(StrEnum):
    """What became of a check."""

    DONE = "done"
    LEFT_OUT = "left out"  # the plan had no room for it, or there is nothing to ask
    INCOMPLETE = "incomplete"  # the engine broke off, or the budget was spent meanwhile


Evidence = dict[str, float | int | str | None]


class Series(Document):
    """Values by place, which the HTML report draws as bars."""

    title: str
    x_label: str
    y_label: str
    places: list[str]
    values: list[float | None]


class AuditFinding(Document):
    """One thing that a check found. `evidence` holds the numbers that it rests on; `cause` names a
    known fault of the engine, where its signs agree, with its issue."""

    severity: Severity
    title: str
    evidence: Evidence = Field(default_factory=dict)
    cause: str | None = None
    remedy: str | None = None
    series: Series | None = None

    @property
    def evidence_text(self) -> str:
        return ", ".join(f"{name} {_written(value)}" for name, value in self.evidence.items())


def _written(value: float | int | str | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "not told" if value is None else str(value)


class CheckResult(Document):
    """One check: what it asked, what it cost, and what it found."""

    name: str
    asks: str
    state: CheckState
    reason: str | None = None  # why it was left out, or is incomplete
    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0
    findings: list[AuditFinding] = Field(default_factory=list)

    @property
    def severity(self) -> Severity:
        """The worst of the findings."""
        order = list(Severity)
        worst = max((order.index(finding.severity) for finding in self.findings), default=0)
        return order[worst]


class AuditedEngine(Document):
    """An engine as the audit met it."""

    url: str
    kind: str
    version: str | None
    model: str
    drafter: str | None = None
    draft_len: int | None = None


class AuditReport(Document):
    """The result of `paceline audit`."""

    format: Literal["paceline-audit/1"] = FORMAT
    date: str
    paceline: str
    engine: AuditedEngine
    reference: AuditedEngine | None
    judged_by: str
    alpha: float
    budget: dict[str, float | int]
    requests: int
    tokens: int
    seconds: float
    broke_off: str | None = None
    checks: list[CheckResult]

    def count(self, severity: Severity) -> int:
        """Return how many findings have this severity."""
        return sum(f.severity == severity for check in self.checks for f in check.findings)

    def exit_status(self, strict: bool = False) -> int:
        """Return FOUND where something is wrong, else INCOMPLETE where something could not be
        asked to its end, else OK. With `strict` a warning is something wrong."""
        if self.count(Severity.FAILURE) or (strict and self.count(Severity.WARNING)):
            return FOUND
        cut_off = any(check.state is CheckState.INCOMPLETE for check in self.checks)
        return INCOMPLETE if cut_off or self.broke_off else OK

    @property
    def verdict(self) -> str:
        """One line: what the whole audit says."""
        counts = [(self.count(s), s) for s in (Severity.FAILURE, Severity.WARNING, Severity.NOTE)]
        found = ", ".join(f"{n} {s}{'' if n == 1 else 's'}" for n, s in counts if n)
        done = sum(check.state is CheckState.DONE for check in self.checks)
        parts = [found or "nothing wrong found", f"{done} of {len(self.checks)} checks done"]
        if self.broke_off:
            parts.append(f"INCOMPLETE: {self.broke_off}")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return self.model_dump(mode="json")
