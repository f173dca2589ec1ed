"""Acceptance by context, and whether it comes back after long prompts and after load."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.engines.answers import Ask
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks.rounds import (
    DIES,
    LEAST_ROUNDS,
    RoundView,
    all_rounds,
    fall,
    mean_al,
)
from paceline.engines.audit.findings import Evidence, Finding, Series, Severity
from paceline.engines.audit.session import PLAIN, Session

SHORT = 4  # short prompts that are asked before and after
ANSWERS = 4  # at each length of context, to the same prompts
TOKENS = 128
SHORTEST = 512  # tokens of a long prompt; longer ones have four times as many each
SEED = 5_000


class RecoveryCheck:
    """Asks the same short prompts before and after long ones, and before and after load."""

    name = "recovery"
    asks = "Does acceptance hold at long contexts, and come back after them and after load?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        short = Cost(1, session.longest_probe + TOKENS)
        cost = short * (3 * SHORT + _load(session))
        for length in lengths(session):
            cost += Cost(1, length + TOKENS) * ANSWERS
        return cost

    def run(self, session: Session, scale: int = 1) -> list[Finding]:
        before = _short(session)
        if not any(each.accepted for each in before):
            return [Finding(severity=Severity.NOTE, title="no speculation was seen")]
        by_length = {length: _long(session, length) for length in lengths(session)}
        after_long = _short(session)
        asks = [_ask(session, number % len(session.probes), number) for number in
                range(SHORT, SHORT + _load(session))]  # fmt: skip
        session.ask_all(asks, fresh=True)
        after_load = _short(session)
        return [
            _contexts(session, before, by_length),
            _back(session, before, after_long, "long prompts"),
            _back(session, before, after_load, "load"),
        ]


def lengths(session: Session) -> list[int]:
    """Return the lengths of the long prompts: 512, 2048, ..., and the longest allowed."""
    several, length = list[int](), SHORTEST
    while length < session.longest:
        several.append(length)
        length *= 4
    return [*several, session.longest]


def _load(session: Session) -> int:
    return 4 * session.meter.budget.at_once


def _ask(session: Session, probe: int, number: int) -> Ask:
    ids, seed = session.probes[probe].ids, session.seed + SEED + number
    return Ask(ids, TOKENS, 1.0, seed=seed, ignore_eos=True, fields=PLAIN)


def _short(session: Session) -> list[RoundView]:
    asks = [_ask(session, number % len(session.probes), number) for number in range(SHORT)]
    return all_rounds(session.ask_all(asks, fresh=True))


def _long(session: Session, length: int) -> list[RoundView]:
    asks = [
        Ask(session.long_prompt(length, number), TOKENS, 1.0,
            seed=session.seed + SEED + 500 + number, ignore_eos=True, fields=PLAIN)
        for number in range(ANSWERS)
    ]  # fmt: skip
    return all_rounds(session.ask_all(asks, fresh=True))


def _contexts(
    session: Session, before: Sequence[RoundView], by_length: dict[int, list[RoundView]]
) -> Finding:
    means = {"short": mean_al(before)} | {str(n): mean_al(r) for n, r in by_length.items()}
    series = Series(
        title="Acceptance length by context",
        x_label="tokens of the prompt",
        y_label="AL incl. bonus",
        places=list(means),
        values=list(means.values()),
    )
    evidence: Evidence = {f"AL at {place}": value for place, value in means.items()}
    # Texts differ: what falls at one length and comes back at a longer one is the text's doing.
    words = [(change and change.words) for change in (fall(before, r) for r in by_length.values())]
    worst = next((place for place in range(len(words)) if all(words[place:])), None)
    if worst is not None:
        cause, remedy = cause_of(session, Sign.COLLAPSE)
        dead = words[-1] == DIES
        return Finding(
            severity=Severity.FAILURE if dead else Severity.WARNING,
            title=f"acceptance {words[worst]} from a context of {list(by_length)[worst]} tokens on",
            evidence=evidence,
            series=series,
            cause=cause,
            remedy=remedy or "switch speculation off for long prompts, or bound the draft window",
        )
    title = f"acceptance holds up to a context of {max(by_length)} tokens"
    return Finding(severity=Severity.OK, title=title, evidence=evidence, series=series)


def _back(
    session: Session, before: Sequence[RoundView], after: Sequence[RoundView], what: str
) -> Finding:
    evidence: Evidence = {
        "AL before": mean_al(before), "AL after": mean_al(after),
        "rounds before": len(before), "rounds after": len(after),
    }  # fmt: skip
    if len(before) >= LEAST_ROUNDS and len(after) < len(before) / 10:
        return Finding(
            severity=Severity.WARNING,
            title=f"the engine drafts no more after {what}",
            evidence=evidence,
            remedy="see whether its draft policy found drafts too dear; else start it again",
        )
    change = fall(before, after)
    words = change.words if change is not None else None
    if words is None:
        title = f"acceptance is the same before and after {what}"
        if change is None:
            title = f"too few rounds to compare acceptance before and after {what}"
        return Finding(severity=Severity.OK if change else Severity.NOTE, title=title,
                       evidence=evidence)  # fmt: skip
    cause, remedy = cause_of(session, Sign.DEAD)
    return Finding(
        severity=Severity.FAILURE,
        title=f"acceptance {words} after {what}, and does not come back",
        evidence=evidence,
        cause=cause,
        remedy=remedy or "start the engine again; keep away what broke it",
    )
