"""Penalties and biases: does each row of a draft see its own history?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from paceline.engines.answers import EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks.texts import Adjust, JudgedText, judge
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.reference import ScoredToken
from paceline.engines.audit.session import PLAIN, Probe, Session
from paceline.engines.client import EngineRefused

PROBES = 4
TOKENS = 64
FREQUENCY, PRESENCE = 1.0, 0.5
BAN = -100.0


class PenaltyCheck:
    """Asks at T = 0 with penalties and with a banned token, and works out the text's likeliest
    tokens from the reference's log-probabilities and the penalties themselves."""

    name = "penalties"
    asks = "T = 0: do penalties and biases count each token of the answer before?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        times = 2 * 2 * min(PROBES, len(session.probes))
        return Cost(1, session.longest_probe + TOKENS + 1) * times

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        penalties = {"frequency_penalty": FREQUENCY, "presence_penalty": PRESENCE}
        found = [_asked(session, "penalties", lambda probe: (penalties, _penalized))]
        found.append(_asked(session, "logit_bias", lambda probe: _ban(session, probe)))
        return found


Fields = Mapping[str, object]
Adjusted = Callable[[Sequence[int]], Adjust]  # answer -> what is added at each place of it


def _asked(
    session: Session, what: str, fields_of: Callable[[Probe], tuple[Fields, Adjusted]]
) -> AuditFinding:
    judged, mattered = JudgedText(), 0
    for probe in session.probes[:PROBES]:
        fields, adjusted = fields_of(probe)
        try:
            answer = session.ask(EngineAsk(probe.ids, TOKENS, 0.0, fields={**PLAIN, **fields}))
        except EngineRefused as error:
            cause, _ = cause_of(session, Sign.REFUSED)
            title = f"{what} is refused: {error}"
            return AuditFinding(severity=Severity.NOTE, title=title, cause=cause)
        scored = session.reference.score(probe.ids, answer.token_ids)
        adjust = adjusted(answer.token_ids)
        judge(judged, probe.name, scored, session.tie, adjust)
        mattered += sum(_matters(token, adjust(place)) for place, token in enumerate(scored))
    return _finding(session, what, judged, mattered)


def _penalized(ids: Sequence[int]) -> Adjust:
    def adjust(place: int) -> Callable[[int], float]:
        counts = Counter(ids[:place])
        return lambda token: -FREQUENCY * counts[token] - PRESENCE * (counts[token] > 0)

    return adjust


def _ban(session: Session, probe: Probe) -> tuple[Fields, Adjusted]:
    """Ban the token that the free text says most often."""
    free = session.ask(EngineAsk(probe.ids, TOKENS, 0.0, fields=PLAIN))
    banned = Counter(free.token_ids).most_common(1)[0][0]

    def adjusted(ids: Sequence[int]) -> Adjust:
        return lambda place: lambda token: BAN if token == banned else 0.0

    return {"logit_bias": {str(banned): BAN}}, adjusted


def _matters(token: ScoredToken, added: Callable[[int], float]) -> bool:
    """Return whether the likeliest token is another one with what is added."""
    adjusted = max(token.top, key=lambda item: item[1] + added(item[0]))
    return adjusted[0] != token.top[0][0]


def _finding(session: Session, what: str, judged: JudgedText, mattered: int) -> AuditFinding:
    evidence: Evidence = {
        "tokens": judged.tokens,
        "places where it matters": mattered,
        "wrong": len(judged.wrong),
        "ties": len(judged.ties),
        "largest gap in nats": judged.worst,
    }
    if not judged.wrong:
        return AuditFinding(severity=Severity.OK, title=f"{what}: every token is right",
                       evidence=evidence)  # fmt: skip
    evidence["first wrong token"] = judged.first_wrong
    cause, remedy = cause_of(session, Sign.PENALTIES)
    return AuditFinding(
        severity=Severity.FAILURE,
        title=f"{what}: tokens are chosen as if it did not count all tokens before",
        evidence=evidence,
        cause=cause,
        remedy=remedy or f"do not use {what} with speculation on this server",
    )
