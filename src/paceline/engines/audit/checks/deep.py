"""T = 1: after one beginning, do tokens that come through drafts follow the law, id by id?

The first token of an answer comes from the prompt's own step, and no draft reaches it. So prompts
are chosen after which the first token is nearly certain: the second then has nearly one law in all
answers, and comes through a draft's verification. A test by id sees what tests by rank miss: a bias
towards what the drafter likes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from paceline.engines.audit.budget import Cost
from paceline.engines.audit.checks.draws import token_test
from paceline.engines.audit.checks.law import law_finding
from paceline.engines.audit.findings import AuditFinding, Severity
from paceline.engines.audit.reference import ScoredToken
from paceline.engines.audit.session import GREEDY_TOKENS, PLAIN, Probe, Session, greedy
from paceline.engines.audit.statistics import ChiSquare
from paceline.engines.client import EngineError, EngineRefused

BEGINNINGS = 2
LEAST_CONTEXT, MOST_CONTEXT = 16, 96  # tokens of a beginning, which goes with every request
ANSWERS = 3000  # at scale 1, over all beginnings
TOKENS = 6  # a first one, and a round of drafts behind it
LEAST_GROUP = 100  # answers that begin alike, which a test of the next token needs, and
LEAST_SHARE = 0.1  # their share: small groups cost power and show little
FIRST_SEED = 1_000_000

Tokens = tuple[int, ...]


class Beginning(NamedTuple):
    """A prompt; the first token after it is nearly certain where `worth` is large."""

    ids: list[int]
    worth: float


class DeepCheck:
    """Draws thousands of short answers to a few prompts, and tests each next token by its id."""

    name = "deep"
    asks = "T = 1: after one beginning, do tokens from drafts follow the law, id by id?"
    tests = 1

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        at_once = session.meter.budget.at_once
        requests = -(-ANSWERS * scale // at_once)
        search = Cost(2, session.longest_probe + GREEDY_TOKENS + MOST_CONTEXT + 1)
        laws = Cost(1, MOST_CONTEXT + TOKENS + 1) * (BEGINNINGS * TOKENS * int(1 / LEAST_SHARE))
        drawn = Cost(1, MOST_CONTEXT + at_once * TOKENS) * requests
        return search * len(session.probes) + laws + drawn

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        beginnings = _beginnings(session)
        try:
            answers = _draw(session, beginnings, ANSWERS * scale)
        except EngineRefused as error:
            return [AuditFinding(severity=Severity.NOTE, title=f"n > 1 is refused: {error}")]
        groups = _groups(answers)
        laws = _laws(session, beginnings, answers, groups)
        test = ChiSquare.total(token_test(tokens, laws[key]) for key, tokens in groups.items())
        if not test.df:
            title = "answers do not begin alike often enough for a test of their next tokens"
            return [AuditFinding(severity=Severity.NOTE, title=title)]
        finding = law_finding(session, f"tokens 2 to {TOKENS}, by id", test)
        finding.evidence["beginnings"] = len(groups)
        return [finding]


Key = tuple[int, Tokens]  # a beginning, and the tokens after it


def _beginnings(session: Session) -> list[Beginning]:
    """Find places in texts of T = 0 where one token is nearly certain and the next is open."""

    def best(probe: Probe) -> Beginning:
        text = [*probe.ids, *session.ask(greedy(probe)).token_ids]
        start = max(0, len(probe.ids) - LEAST_CONTEXT)
        text = text[start : start + MOST_CONTEXT]
        scored = session.reference.score(text[:LEAST_CONTEXT], text[LEAST_CONTEXT:])
        worths = [_worth(one, two) for one, two in pairwise(scored)]
        place = max(range(len(worths)), key=worths.__getitem__, default=0)
        return Beginning(text[: LEAST_CONTEXT + place], worths[place] if worths else 0.0)

    several = session.each(session.probes, best)
    return sorted(several, key=lambda beginning: -beginning.worth)[:BEGINNINGS]


def _worth(one: ScoredToken, two: ScoredToken) -> float:
    """Return how often the first token comes, times how open the next is."""
    share, likeliest = math.exp(one.logprob), math.exp(two.top[0][1])
    return share**2 * min(likeliest, 1 - likeliest)


def _draw(session: Session, beginnings: Sequence[Beginning], count: int) -> list[list[Tokens]]:
    """Draw answers to each beginning, as many in one request as may be at once."""
    at_once, requests = session.meter.budget.at_once, -(-count // session.meter.budget.at_once)
    answers: list[list[Tokens]] = [[] for _ in beginnings]
    for number in range(requests):
        chosen = number % len(beginnings)
        ids = beginnings[chosen].ids
        body = {
            "prompt": ids, "max_tokens": TOKENS, "temperature": 1.0, "n": at_once,
            # an engine may give choice i the seed + i
            "seed": session.seed + FIRST_SEED + number * at_once,
            "return_token_ids": True, "ignore_eos": True, **PLAIN,
        }  # fmt: skip
        told = session.post(body, len(ids) + at_once * TOKENS, places=at_once)
        answers[chosen] += [tuple(choice.get("token_ids") or ()) for choice in told["choices"]]
    if any(not answer for several in answers for answer in several):
        raise EngineError(f"the engine at {session.server.url} tells no token ids of choices")
    return answers


def _groups(answers: Sequence[Sequence[Tokens]]) -> dict[Key, list[int]]:
    """Return the tokens that came next, by what was before them, where many began alike."""
    groups: dict[Key, list[int]] = defaultdict(list)
    for beginning, several in enumerate(answers):
        for answer in several:
            for depth in range(1, len(answer)):
                groups[beginning, answer[:depth]].append(answer[depth])
    least = [max(LEAST_GROUP, LEAST_SHARE * len(several)) for several in answers]
    return {key: tokens for key, tokens in groups.items() if len(tokens) >= least[key[0]]}


def _laws(
    session: Session,
    beginnings: Sequence[Beginning],
    answers: Sequence[Sequence[Tokens]],
    groups: dict[Key, list[int]],
) -> dict[Key, ScoredToken]:
    """Have the reference score one answer of each group; an answer may stand for several."""
    laws: dict[Key, ScoredToken] = {}
    for beginning, before in sorted(groups, key=lambda key: -len(key[1])):
        if (beginning, before) in laws:
            continue
        answer = next(a for a in answers[beginning] if a[: len(before)] == before)
        scored = session.reference.score(beginnings[beginning].ids, answer)
        for depth in range(1, len(answer)):
            laws.setdefault((beginning, answer[:depth]), scored[depth])
    return laws
