"""Seeds and choices: equal seeds give equal texts, all others differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from paceline.engines.answers import EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks.draws import Draw, everywhere, ranks
from paceline.engines.audit.checks.texts import first_difference
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.session import PLAIN, Session
from paceline.engines.client import EngineError, EngineRefused

TOKENS = 48
PAIRS = 4  # prompts that are asked twice with one seed
DIFFERENT = 6  # seeds that must differ
UNSEEDED = 2
CHOICES = 4  # or as many as may be at once
FIRST_SEED = 1_000


class SeedCheck:
    """Asks with equal seeds, with different ones, and without."""

    name = "seeds"
    asks = "T = 1: do equal seeds give equal texts, and different seeds different ones?"
    tests = 1

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        scored = 1
        return Cost(1, session.longest_probe + TOKENS + 1) * (
            2 * PAIRS + DIFFERENT + UNSEEDED + scored
        )

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        return [self._equal(session), self._different(session)]

    def _equal(self, session: Session) -> AuditFinding:
        asks = [
            _sampled(probe.ids, session.seed + FIRST_SEED + number)
            for number, probe in enumerate(session.probes[:PAIRS])
        ]
        first = session.ask_all(asks, fresh=True)
        again = session.ask_all(asks, fresh=True)
        places = [
            first_difference(one.token_ids, two.token_ids)
            for one, two in zip(first, again, strict=True)
        ]
        differing = [place for place in places if place is not None]
        evidence: Evidence = {"pairs": len(asks), "differ": len(differing)}
        if not differing:
            return AuditFinding(severity=Severity.OK, title="equal seeds give equal texts",
                           evidence=evidence)  # fmt: skip
        evidence["first differing token"] = min(differing) + 1
        by_draft = _rule(session) in ("token", "block")
        promised = session.server.kind.traits.promises_text and not by_draft
        return AuditFinding(
            severity=Severity.FAILURE if promised else Severity.WARNING,
            title="equal seeds give different texts",
            evidence=evidence,
            cause="a seed's text depends on drafts under --rule token or block"
            if by_draft
            else None,
            remedy="do not rely on seeds for repeatable texts here; the check `law` judges the law",
        )

    def _different(self, session: Session) -> AuditFinding:
        probe, base = session.probes[0], session.seed + FIRST_SEED + 100
        seeds = [*range(base, base + DIFFERENT), *[None] * UNSEEDED]
        asks = [_sampled(probe.ids, seed) for seed in seeds]
        texts = [answer.token_ids for answer in session.ask_all(asks, fresh=True)]
        return judge_equal(session, probe.ids, texts, "different seeds")


class ChoiceCheck:
    """Asks for several choices of one prompt."""

    name = "choices"
    asks = "n > 1: do the choices differ, and follow the law?"
    tests = 2

    def needs(self, session: Session) -> str | None:
        return "--at-once allows one answer at a time" if session.meter.budget.at_once < 2 else None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        prompt = session.longest_probe
        return Cost(1, prompt + CHOICES * TOKENS) + Cost(1, prompt + TOKENS + 1) * (CHOICES + 1)

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        ids, choices = session.probes[0].ids, max(2, min(CHOICES, session.meter.budget.at_once))
        body = {
            "prompt": ids, "max_tokens": TOKENS, "temperature": 1.0, "n": choices,
            "seed": session.seed + FIRST_SEED + 500, "return_token_ids": True, "ignore_eos": True,
            **PLAIN,
        }  # fmt: skip
        try:
            told = session.post(body, len(ids) + choices * TOKENS, places=choices)
        except EngineRefused as error:
            return [
                AuditFinding(severity=Severity.NOTE, title=f"n = {choices} is refused: {error}")
            ]
        texts = [list(choice.get("token_ids") or ()) for choice in told.get("choices", ())]
        if any(not text for text in texts):
            raise EngineError(f"the engine at {session.server.url} tells no token ids of choices")
        if len(texts) != choices:
            evidence: Evidence = {"asked": choices, "came": len(texts)}
            return [AuditFinding(severity=Severity.FAILURE, title="choices are missing",
                            evidence=evidence)]  # fmt: skip
        return [judge_equal(session, ids, texts, "choices"), _law(session, ids, texts)]


def judge_equal(
    session: Session, ids: Sequence[int], texts: Sequence[Sequence[int]], what: str
) -> AuditFinding:
    """Judge texts that must differ: two equal ones are a fault where chance rarely makes them."""
    pairs = list(combinations(texts, 2))
    equal = [list(one) for one, two in pairs if list(one) == list(two)]
    evidence: Evidence = {"texts": len(texts), "equal pairs": len(equal)}
    if not equal:
        return AuditFinding(severity=Severity.OK, title=f"{what} give different texts",
                       evidence=evidence)  # fmt: skip
    scored = session.reference.score(ids, equal[0])
    likely = len(pairs) * math.exp(sum(token.logprob for token in scored))
    evidence["p"] = min(1.0, likely)
    by_chance = likely >= session.alpha
    return AuditFinding(
        severity=Severity.OK if by_chance else Severity.FAILURE,
        title=f"{what} give equal texts" + (", as chance may" if by_chance else ""),
        evidence=evidence,
        remedy=None
        if by_chance
        else "the noise is not keyed by seed and choice: do not use n > 1 or seeds here",
    )


def _law(session: Session, ids: Sequence[int], texts: Sequence[Sequence[int]]) -> AuditFinding:
    draws = [Draw(0, scored) for scored in session.each(
        texts, lambda text: session.reference.score(ids, text)
    )]  # fmt: skip
    test = ranks(draws, 1, everywhere).test()
    evidence: Evidence = {"tokens": test.samples, "p": test.p, "alpha": session.alpha}
    evidence["bias found with 90%"] = test.bias_found(session.alpha)
    cause, remedy = cause_of(session, Sign.LAW)
    good = test.p >= session.alpha
    return AuditFinding(
        severity=Severity.OK if good else Severity.FAILURE,
        title="choices follow the model's law" if good else "choices do not follow the model's law",
        evidence=evidence,
        cause=None if good else cause,
        remedy=None if good else remedy,
    )


def _sampled(ids: list[int], seed: int | None) -> EngineAsk:
    return EngineAsk(ids, TOKENS, 1.0, seed=seed, ignore_eos=True, fields=PLAIN)


def _rule(session: Session) -> str | None:
    """Return the verification rule of Paceline's server; None where it is not told."""
    try:
        told = session.server.get_json("/ui/serving") or {}
    except EngineError:
        return None
    rule = told.get("rule")
    return rule if isinstance(rule, str) else None
