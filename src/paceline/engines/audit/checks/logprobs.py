"""Log-probabilities: are those of an answer the model's, also for accepted drafts?"""

from __future__ import annotations

from typing import NamedTuple

from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.reference import ScoredToken
from paceline.engines.audit.session import PLAIN, Session
from paceline.engines.client import EngineRefused

PROBES = 4
TOKENS = 48
TOP = 5
LEAST_LIMIT = 0.05  # nats
SHARE = 0.02  # of the tokens that may be off by more: rounding has tails
SEED = 2_000


class ComparedLogprobs(NamedTuple):
    """Differences in nats of each told log-probability from the reference's, and what is amiss."""

    differences: list[float]
    missing: int
    absent_from_top: int


class LogprobCheck:
    """Asks for log-probabilities at T = 0 and T = 1, and compares them with the reference's."""

    name = "logprobs"
    asks = "Are the log-probabilities of answers the model's?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        times = 2 * 2 * min(PROBES, len(session.probes))
        return Cost(1, session.longest_probe + TOKENS + 1) * times

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        try:
            return [self._at(session, temperature) for temperature in (0.0, 1.0)]
        except EngineRefused as error:
            cause, _ = cause_of(session, Sign.LOGPROBS)
            title = f"log-probabilities are refused: {error}"
            return [AuditFinding(severity=Severity.WARNING, title=title, cause=cause)]

    def _at(self, session: Session, temperature: float) -> AuditFinding:
        def look(probe_number: int) -> ComparedLogprobs:
            ids, seed = session.probes[probe_number].ids, session.seed + SEED + probe_number
            ask = EngineAsk(ids, TOKENS, temperature, seed=seed, top_logprobs=TOP, fields=PLAIN)
            answer = session.ask(ask, fresh=True)
            return _compared(answer, session.reference.score(ids, answer.token_ids))

        numbers = range(min(PROBES, len(session.probes)))
        compared = session.each(numbers, look)
        return _finding(session, temperature, compared)


def _compared(answer: EngineAnswer, scored: list[ScoredToken]) -> ComparedLogprobs:
    pairs = list(zip(answer.logprobs, scored, strict=False))
    differences = [abs(told.chosen - token.logprob) for told, token in pairs]
    absent = sum(token.token not in told.top for told, token in pairs)
    return ComparedLogprobs(differences, max(0, len(scored) - len(answer.logprobs)), absent)


def _finding(
    session: Session, temperature: float, compared: list[ComparedLogprobs]
) -> AuditFinding:
    limit = max(LEAST_LIMIT, 2 * session.tie)
    differences = [value for each in compared for value in each.differences]
    off = sum(value > limit for value in differences)
    missing = sum(each.missing for each in compared)
    absent = sum(each.absent_from_top for each in compared)
    evidence: Evidence = {
        "tokens": len(differences) + missing,
        "missing": missing,
        "off": off,
        "largest difference in nats": max(differences, default=None),
        "limit in nats": limit,
    }
    words = f"T = {temperature:g}: log-probabilities"
    if not missing and not absent and off <= SHARE * len(differences):
        return AuditFinding(
            severity=Severity.OK, title=f"{words} are the model's", evidence=evidence
        )
    if absent:
        evidence["chosen tokens without a log-probability of their own"] = absent
    cause, remedy = cause_of(session, Sign.LOGPROBS)
    return AuditFinding(
        severity=Severity.FAILURE,
        title=f"{words} are {'missing' if missing else 'not the model' + chr(39) + 's'}",
        evidence=evidence,
        cause=cause,
        remedy=remedy
        or "do not use log-probabilities of this server; check whether it tells "
        "them after temperature and penalties (vLLM's --logprobs-mode raw_logprobs is expected)",
    )
