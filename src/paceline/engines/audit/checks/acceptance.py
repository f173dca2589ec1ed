"""Acceptance by position in the draft and in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from paceline.engines.answers import Ask
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.checks.rounds import DIES, RoundView, all_rounds, fall, mean_al
from paceline.engines.audit.findings import Evidence, Finding, Series, Severity
from paceline.engines.audit.session import PLAIN, Probe, Session

ANSWERS = 4
TOKENS = 1024
EDGES = (0, 128, 256, 512, 1024)  # windows of the answer
EARLY = (128, 256)  # the window that later ones are compared with: openings often copy the prompt
SEED = 4_000
LOW = 0.1  # accepted tokens per round below which drafts are hardly ever right
LEAST_REACHED = 50  # rounds that came to a draft position


class AcceptanceCheck:
    """Asks for long answers at T = 1, where small models do not loop, and reads their rounds."""

    name = "acceptance"
    asks = "Are drafts accepted at every position of the draft, and all along a long answer?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        return Cost(1, session.longest_probe + _tokens(session)) * ANSWERS

    def run(self, session: Session, scale: int = 1) -> list[Finding]:
        asks = [
            Ask(probe.ids, _tokens(session), 1.0, seed=session.seed + SEED + number,
                ignore_eos=True, fields=PLAIN)
            for number, probe in enumerate(_repeated(session))
        ]  # fmt: skip
        rounds = all_rounds(session.ask_all(asks))
        al = mean_al(rounds)
        if al is None or not any(each.accepted for each in rounds):
            title = "no speculation was seen: no answer came with more than a token at a time"
            return [Finding(severity=Severity.NOTE, title=title)]
        return [_overall(rounds, al), _by_draft(rounds), *_by_answer(session, rounds)]


def _tokens(session: Session) -> int:
    return min(TOKENS, session.context - session.longest_probe - 1)


def _repeated(session: Session) -> list[Probe]:
    probes = session.probes
    return [probes[number % len(probes)] for number in range(ANSWERS)]


def _overall(rounds: Sequence[RoundView], al: float) -> Finding:
    evidence: Evidence = {"AL incl. bonus": al, "rounds": len(rounds)}
    if any(each.drafted is None for each in rounds):
        evidence["rounds read from"] = "the stream's events"
    if al - 1 >= LOW:
        return Finding(severity=Severity.OK, title=f"drafts are accepted: AL {al:.2f} incl. bonus",
                       evidence=evidence)  # fmt: skip
    return Finding(
        severity=Severity.WARNING,
        title=f"drafts are hardly ever accepted: AL {al:.2f} incl. bonus",
        evidence=evidence,
        remedy="check the pair of target and drafter (`paceline doctor`): another checkpoint, chat "
        "template or tokenizer explains this most often",
    )


def _by_draft(rounds: Sequence[RoundView]) -> Finding:
    """Report the acceptance of each draft position, of the rounds that came to it."""
    longest = max((each.drafted or each.accepted) for each in rounds)
    shares: list[float | None] = []
    dead: int | None = None
    for k in range(1, longest + 1):
        reached = [each for each in rounds if each.accepted >= k - 1 and (each.drafted or k) >= k]
        share = sum(each.accepted >= k for each in reached) / len(reached) if reached else None
        shares.append(share)
        if share == 0 and len(reached) >= LEAST_REACHED and dead is None:
            dead = k
    series = Series(
        title="Acceptance by position in the draft",
        x_label="draft position",
        y_label="share of the rounds that came to it",
        places=[str(k) for k in range(1, longest + 1)],
        values=shares,
    )
    evidence: Evidence = {
        f"position {k}": share for k, share in enumerate(shares[:8], 1) if share is not None
    }
    if dead is None or dead == 1:
        title = "acceptance by position in the draft"
        return Finding(severity=Severity.OK, title=title, evidence=evidence, series=series)
    return Finding(
        severity=Severity.WARNING,
        title=f"no draft token at position {dead} is ever accepted",
        evidence=evidence,
        series=series,
        remedy=f"draft at most {dead - 1} tokens: the rest costs time only. The drafter may have "
        "been trained for shorter drafts",
    )


def _by_answer(session: Session, rounds: Sequence[RoundView]) -> list[Finding]:
    windows = {
        f"{low}–{high}": [each for each in rounds if low <= each.position < high]
        for low, high in pairwise(EDGES)
    }
    series = Series(
        title="Acceptance length by position in the answer",
        x_label="tokens of the answer before the round",
        y_label="AL incl. bonus",
        places=list(windows),
        values=[mean_al(inside) for inside in windows.values()],
    )
    evidence: Evidence = {name: mean_al(inside) for name, inside in windows.items() if inside}
    inside = dict(zip(EDGES, windows.values(), strict=False))
    for low, rounds_there in inside.items():
        change = fall(inside[EARLY[0] if low >= EARLY[1] else 0], rounds_there)
        if change is None or change.words is None or (low < EARLY[1] and change.words != DIES):
            continue
        cause, remedy = cause_of(session, Sign.COLLAPSE)
        evidence["accepted, beside earlier"] = change.ratio
        return [Finding(
            severity=Severity.WARNING if change.words == "decays" else Severity.FAILURE,
            title=f"acceptance {change.words} after {low} tokens of the answer",
            evidence=evidence,
            series=series,
            cause=cause,
            remedy=remedy or "bound the drafter's window, or let the engine stop drafting where "
            "drafts fail",
        )]  # fmt: skip
    seen = max((each.position for each in rounds), default=0)
    title = f"acceptance holds along an answer, as far as {seen} tokens"
    return [Finding(severity=Severity.OK, title=title, evidence=evidence, series=series)]
