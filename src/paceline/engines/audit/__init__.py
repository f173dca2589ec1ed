"""The audit of a running server: is its output lossless, and is its speculation healthy?

`Audit` opens a session with the server and its reference, plans the checks that fit the budget, and
asks them. Each check returns findings with their evidence. See docs/audit.md.
"""

from __future__ import annotations

from paceline.engines.audit.budget import Budget, BudgetSpent
from paceline.engines.audit.findings import AuditFinding, AuditReport, CheckState, Severity
from paceline.engines.audit.run import Audit, AuditSettings

__all__ = [
    "Audit",
    "AuditFinding",
    "AuditReport",
    "AuditSettings",
    "Budget",
    "BudgetSpent",
    "CheckState",
    "Severity",
]
