"""The prefix cache: hits with and without speculation, and the text after a hit."""

from __future__ import annotations

from typing import NamedTuple

from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks.texts import JudgedText, first_difference
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.reference import Reference
from paceline.engines.audit.session import PLAIN, Session
from paceline.engines.client import EngineClient, EngineRefused
from paceline.engines.metrics import EngineMetrics

LENGTH = 600  # tokens of the shared prompt: many blocks
TOKENS = 48
SALT = 7  # of the texts that the prompt begins with
LOST = 0.1  # of the prompt: fewer hits than that are blocks at its end


class Hits(NamedTuple):
    """A prompt that was asked twice, and the share of it that came from the cache the second time;
    None where it is not told."""

    ids: list[int]
    share: float | None
    cold: EngineAnswer
    warm: EngineAnswer


class PrefixCheck:
    """Asks a long prompt twice, with speculation and without."""

    name = "prefix"
    asks = "Prefix cache: as many hits with speculation as without, and the same text after one?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        if session.longest < LENGTH:
            return f"prompts of {LENGTH} tokens do not fit"
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        return Cost(1, LENGTH + TOKENS) * 5

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        ids = session.long_prompt(LENGTH, SALT)
        drafted = _twice(session, ids, None)
        plain = _twice(session, ids, session.reference) if session.reference.asks else None
        return [_hits(session, drafted, plain), _text(session, drafted)]


def _twice(session: Session, ids: list[int], reference: Reference | None) -> Hits:
    """Ask twice under a scope that nothing else has used."""
    salt = f"audit-{session.seed}-{'off' if reference else 'on'}-{id(session)}"
    ask = EngineAsk(ids, TOKENS, 0.0, fields={**PLAIN, "cache_salt": salt})
    answer = reference.ask if reference else lambda a: session.ask(a, fresh=True)
    client = reference.client if reference else session.server
    cold = answer(ask)
    before = _counters(client)
    warm = answer(ask)
    share = None if warm.cached_tokens is None else warm.cached_tokens / len(ids)
    if share is None and before is not None:  # the counters tell, where nobody else asks meanwhile
        after = _counters(client)
        share = after.since(before).prefix_hit_share if after is not None else None
    return Hits(ids, share, cold, warm)


def _counters(client: EngineClient) -> EngineMetrics | None:
    """Read the server's metrics; None where it has none."""
    try:
        return client.metrics()
    except (EngineRefused, ValueError):
        return None


def _hits(session: Session, drafted: Hits, plain: Hits | None) -> AuditFinding:
    evidence: Evidence = {"cached with speculation": drafted.share}
    if plain is not None:
        evidence["cached without"] = plain.share
    lost = plain is not None and plain.share is not None and drafted.share is not None
    if lost and plain.share - drafted.share > LOST:  # type: ignore[union-attr,operator]
        cause, remedy = cause_of(session, Sign.PREFIX_HITS)
        return AuditFinding(
            severity=Severity.WARNING,
            title="prefix hits are lost with speculation",
            evidence=evidence,
            cause=cause,
            remedy=remedy or "compare TTFT of long shared prompts with and without speculation",
        )
    if drafted.share is None:
        title = "the server does not tell prefix hits"
        return AuditFinding(severity=Severity.NOTE, title=title, evidence=evidence)
    if not drafted.share:
        title = "no prefix hits: the prefix cache is off, or forgets at once"
        return AuditFinding(severity=Severity.NOTE, title=title, evidence=evidence)
    title = f"prefix hits: {drafted.share:.0%} of a repeated prompt"
    return AuditFinding(severity=Severity.OK, title=title, evidence=evidence)


def _text(session: Session, drafted: Hits) -> AuditFinding:
    """Compare the text after a hit with that of the first time, and judge a difference."""
    place = first_difference(drafted.warm.token_ids, drafted.cold.token_ids)
    evidence: Evidence = {"tokens": len(drafted.warm.token_ids)}
    if place is None:
        return AuditFinding(severity=Severity.OK, title="the text after a prefix hit is the same",
                       evidence=evidence)  # fmt: skip
    judged = JudgedText()
    for answer in (drafted.cold, drafted.warm):
        for token in session.reference.score(drafted.ids, answer.token_ids)[place : place + 1]:
            judged.add("", place, token.gap, session.tie)
    evidence |= {"first difference": place + 1, "gap in nats": judged.worst}
    if not judged.wrong:
        return AuditFinding(severity=Severity.OK, evidence=evidence,
                       title="the text after a prefix hit differs at a tie")  # fmt: skip
    cause, remedy = cause_of(session, Sign.PREFIX_TEXT)
    return AuditFinding(
        severity=Severity.FAILURE,
        title="the text after a prefix hit is another one",
        evidence=evidence,
        cause=cause,
        remedy=remedy or "switch the prefix cache off",
    )
