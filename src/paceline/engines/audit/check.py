"""The protocol of a check, and the plan: which checks fit the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.engines.audit.budget import NOTHING, Cost
from paceline.engines.audit.findings import AuditFinding
from paceline.engines.audit.session import Session


class AuditCheck(Protocol):
    """One question to the server.

    `name` stands in tables, `asks` is the question in a sentence. `tests` counts the statistical
    tests that share the audit's α.
    """

    name: str
    asks: str
    tests: int

    def needs(self, session: Session) -> str | None:
        """Say what the server or the reference lacks for this check; None where nothing lacks."""

    def cost(self, session: Session, scale: int = 1) -> Cost:
        """Return what the check uses at most. A larger `scale` finds smaller faults; a check that
        has one size alone ignores it."""

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        """Ask, and return what was found. Raises EngineError and BudgetSpent."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A check with its scale and cost; `reason` says why it is left out."""

    check: AuditCheck
    scale: int = 1
    cost: Cost = NOTHING
    reason: str | None = None


LARGEST_SCALE = 8


def plan(checks: Sequence[AuditCheck], session: Session) -> list[Planned]:
    """Choose the checks that fit the budget, in their order; what is left over goes to larger
    scales, where a check has several."""
    room, planned = session.meter.room, list[Planned]()
    for check in checks:
        if (lack := check.needs(session)) is not None:
            planned.append(Planned(check, reason=lack))
            continue
        cost = check.cost(session)
        if not cost.fits(room):
            words = f"it needs {cost.requests} requests and {cost.tokens} tokens; "
            words += f"{room.requests} and {room.tokens} of the budget are left"
            planned.append(Planned(check, cost=cost, reason=words))
            continue
        room = Cost(room.requests - cost.requests, room.tokens - cost.tokens)
        planned.append(Planned(check, 1, cost))
    return _scaled(planned, session, room)


def _scaled(planned: list[Planned], session: Session, room: Cost) -> list[Planned]:
    """Give what is left over to the checks that have several sizes, in turns."""
    for _ in range(LARGEST_SCALE):
        for index, item in enumerate(planned):
            if item.reason is not None or item.scale == LARGEST_SCALE:
                continue
            cost = item.check.cost(session, item.scale + 1)
            more = Cost(cost.requests - item.cost.requests, cost.tokens - item.cost.tokens)
            if more.tokens and more.fits(room):
                planned[index] = Planned(item.check, item.scale + 1, cost)
                room = Cost(room.requests - more.requests, room.tokens - more.tokens)
    return planned
