"""Loops: a text that repeats itself is drafted for free, and makes acceptance look good."""

from __future__ import annotations

from paceline.dataset.loops import loop_start
from paceline.engines.answers import EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks.rounds import RoundView, mean_al, rounds_of
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.session import PLAIN, Session

PROBES = 2
TOKENS = 512
FLATTERED = 1.25  # AL with loops ÷ AL without, from which the one with loops misleads


class LoopCheck:
    """Asks for long texts at T = 0, and looks for loops in all answers of the audit."""

    name = "loops"
    asks = "Does acceptance come from texts that repeat themselves?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        return Cost(1, session.longest_probe + _tokens(session)) * PROBES

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        asks = [EngineAsk(probe.ids, _tokens(session), 0.0, fields=PLAIN)
                for probe in session.probes[:PROBES]]  # fmt: skip
        session.ask_all(asks)
        texts, looping = 0, 0
        outside, inside = list[RoundView](), list[RoundView]()
        for _, answer in session.answered:
            start = loop_start(answer.token_ids)
            texts, looping = texts + 1, looping + (start is not None)
            for each in rounds_of(answer):
                (inside if start is not None and each.position >= start else outside).append(each)
        return [_finding(session, texts, looping, outside, inside)]


def _tokens(session: Session) -> int:
    return min(TOKENS, session.context - session.longest_probe - 1)


def _finding(
    session: Session,
    texts: int,
    looping: int,
    outside: list[RoundView],
    inside: list[RoundView],
) -> AuditFinding:
    without, within, whole = mean_al(outside), mean_al(inside), mean_al([*outside, *inside])
    evidence: Evidence = {"texts": texts, "that loop": looping}
    if whole is not None:
        evidence |= {"AL incl. bonus": whole, "outside loops": without, "inside loops": within}
    drafted = sum(each.drafted or 0 for each in inside)
    if drafted:
        evidence["accepted inside loops"] = sum(each.accepted for each in inside) / drafted
    if not looping or within is None:
        return AuditFinding(
            severity=Severity.OK, title="no loop lifts the acceptance", evidence=evidence
        )
    cause, _ = cause_of(session, Sign.LOOP)
    misleads = without is None or (whole is not None and whole / without >= FLATTERED)
    return AuditFinding(
        severity=Severity.WARNING if misleads else Severity.NOTE,
        title=f"{looping} of {texts} texts loop, and their acceptance is not worth anything",
        evidence=evidence,
        cause=cause,
        remedy="judge speed and acceptance outside loops; a loop at T = 0 is the model's own where "
        "the check `greedy` finds nothing wrong",
    )
