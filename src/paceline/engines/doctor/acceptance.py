"""The acceptance that an engine achieves, beside what its drafter should accept in the same rounds.

Rounds are those of the engine: each begins where the engine began it, on the engine's own text. The
drafter here drafts there too, from the same text; the text itself judges both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.bench.report.words import percent
from paceline.drafters.reference import Trained
from paceline.engines.doctor.readings import (
    Counts,
    DrafterReading,
    JudgedRounds,
    expected_accepted,
    readings_of,
)
from paceline.engines.doctor.report import DoctorFinding, PositionResult
from paceline.evaluate.numbers import context_bin
from paceline.evaluate.paired import Difference, Numbers, difference

SHORTFALL = 0.05  # of the acceptance length: what is less is no finding, however clear
LONGER = 0.03  # of the acceptance length: what a longer draft must add to be worth a word
EXPLAINS = 0.05  # of all rounds: so many more must a mistaken reading explain than the config
FIRST_ROUNDS = 200  # that every mistaken reading drafts; most explain too few of them to go on
OWN = "as its config says"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rounds of every answer, with what each should accept."""

    trained: Trained
    rounds: Sequence[JudgedRounds]
    drafted: int
    expected: Sequence[Counts]

    @classmethod
    def of(cls, trained: Trained, rounds: Sequence[JudgedRounds], drafted: int) -> Comparison:
        own = DrafterReading(OWN, trained.config)
        expected = [expected_accepted(trained, own, each, drafted) for each in rounds]
        return cls(trained, rounds, drafted, expected)

    @property
    def count(self) -> int:
        return sum(len(each.anchors) for each in self.rounds)

    def first(self, rounds: int) -> Comparison:
        """Return the first answers that have so many rounds together, or all."""
        before = np.cumsum([0, *(len(each.anchors) for each in self.rounds)])
        count = int((before[:-1] < rounds).sum())
        return replace(self, rounds=self.rounds[:count], expected=self.expected[:count])

    @property
    def achieved_al(self) -> float:
        return 1 + float(np.concatenate([each.accepted for each in self.rounds]).mean())

    @property
    def expected_al(self) -> float:
        return 1 + float(np.concatenate(self.expected).mean())

    def short(self) -> Difference:
        """How many tokens of a round the engine falls short, on average."""
        pairs = zip(self.expected, self.rounds, strict=True)
        return difference([(should - each.accepted).astype(float) for should, each in pairs])

    def positions(self) -> list[PositionResult]:
        return [self._position(k) for k in range(1, self.drafted + 1)]

    def _position(self, k: int) -> PositionResult:
        achieved: list[Numbers] = [(each.accepted >= k).astype(float) for each in self.rounds]
        expected: list[Numbers] = [(counts >= k).astype(float) for counts in self.expected]
        short = difference([e - a for e, a in zip(expected, achieved, strict=True)])
        return PositionResult(
            position=k,
            achieved=float(np.concatenate(achieved).mean()),
            expected=float(np.concatenate(expected).mean()),
            short=short.mean,
            interval=short.interval,
            z=short.z,
        )


def acceptance_finding(compared: Comparison) -> DoctorFinding:
    """Say whether the engine accepts what this drafter should."""
    short, achieved, expected = compared.short(), compared.achieved_al, compared.expected_al
    evidence = (
        f"acceptance length {achieved:.2f} incl. bonus at the engine, {expected:.2f} with this "
        f"drafter here, in the same {compared.count} rounds ({short.mean:+.2f} tokens a round "
        f"short, {short.z:+.1f} standard errors)"
    )
    bad = short.is_clear and short.mean > SHORTFALL * expected
    remedy = "the engine does not serve this drafter as it is: see what else is found"
    return DoctorFinding("acceptance", not bad, evidence, remedy if bad else "")


def reading_finding(compared: Comparison, target_theta: float) -> DoctorFinding:
    """Say which reading of the checkpoint explains the engine's rounds best."""
    trained, name = compared.trained, "how the engine reads the checkpoint"
    longest = max(map(len, trained.texts.values()))
    own = _explained(compared, compared.expected)
    share = _share(own)
    readings = readings_of(trained, target_theta, compared.drafted, longest)
    if not readings:
        return DoctorFinding(name, None, "there is no other reading to compare with")
    healthy = (
        f"its config explains {percent(share)} of the engine's rounds to the token, and none "
        f"of {len(readings)} mistaken readings explains clearly more"
    )
    scored = [(_drafted_by(compared, each), each.label) for each in _likely(compared, readings)]
    if not scored:
        return DoctorFinding(name, True, healthy)
    best, label = max(scored, key=lambda pair: _share(pair[0]))
    gained = difference([a - b for a, b in zip(best, own, strict=True)])
    if not gained.is_clear or gained.mean < EXPLAINS:
        return DoctorFinding(name, True, healthy)
    ties = [
        other
        for explained, other in scored
        if other != label and _share(best) - _share(explained) < EXPLAINS / 2
    ]
    also = f" (as do: {', '.join(ties)})" if ties else ""
    evidence = (
        f"{label} explains {percent(_share(best))} of the engine's rounds to the token, the "
        f"checkpoint's own config {percent(share)}{also}"
    )
    remedy = "compare the config.json that the engine reads, and its loader, with this checkpoint's"
    return DoctorFinding(name, False, evidence, remedy)


def length_finding(compared: Comparison) -> DoctorFinding:
    """Compare the engine's draft length with the block that the drafter was trained on."""
    trained, drafted = compared.trained, compared.drafted
    most, name = trained.config.max_draft_len, "draft length"
    if drafted == most:
        return DoctorFinding(name, True, f"the engine drafts all {most} tokens of the block")
    if drafted > most:
        evidence = f"the engine drafts {drafted} tokens from a drafter trained on blocks of {most}"
        return DoctorFinding(name, False, evidence, f"draft {most} tokens (num_speculative_tokens)")
    whole = DrafterReading(OWN, trained.config, masks=most)
    shorter, longer = [], []
    for each, counts in zip(compared.rounds, compared.expected, strict=True):
        fits = each.anchors + most < len(trained.texts[each.name])
        kept = JudgedRounds(each.name, each.prompt_tokens, each.anchors[fits], each.accepted[fits])
        longer.append(expected_accepted(trained, whole, kept, most).astype(float))
        shorter.append(counts[fits].astype(float))
    if not sum(map(len, longer)):
        return DoctorFinding(
            name, None, f"the engine drafts {drafted} of {most} tokens of the block"
        )
    gained = difference([b - a for a, b in zip(shorter, longer, strict=True)])
    now, then = (1 + float(np.concatenate(each).mean()) for each in (shorter, longer))
    evidence = (
        f"the engine drafts {drafted} of the block's {most} tokens: acceptance length {now:.2f} "
        f"incl. bonus with this drafter, {then:.2f} with the whole block"
    )
    bad = gained.is_clear and gained.mean > LONGER * now
    return DoctorFinding(name, not bad, evidence, f"draft {most} tokens" if bad else "")


def context_finding(compared: Comparison) -> DoctorFinding:
    """Say whether the engine falls short from some length of context on, and not before."""
    bins: dict[int, list[Numbers]] = {}
    for each, counts in zip(compared.rounds, compared.expected, strict=True):
        of_round = np.array([context_bin(int(anchor)) for anchor in each.anchors])
        for edge in set(of_round.tolist()):
            inside = of_round == edge
            bins.setdefault(edge, []).append((counts - each.accepted)[inside].astype(float))
    edges, name = sorted(bins), "context"
    shorts = {edge: difference(bins[edge]) for edge in edges}
    limit = SHORTFALL * compared.expected_al
    short = [edge for edge in edges if shorts[edge].is_clear and shorts[edge].mean > limit]
    shown = ", ".join(f"from {edge}: {shorts[edge].mean:+.2f}" for edge in edges)
    if short and short == edges[len(edges) - len(short) :] and len(short) < len(edges):
        evidence = f"from {short[0]} tokens of context on the engine falls short ({shown})"
        remedy = "look for a window or a maximal length of the drafter in the engine's options"
        return DoctorFinding(name, False, evidence, remedy)
    evidence = f"no length of context stands out; tokens a round short by context: {shown}"
    return DoctorFinding(name, True if len(edges) > 1 else None, evidence)


def _likely(compared: Comparison, readings: Sequence[DrafterReading]) -> Iterator[DrafterReading]:
    """Yield the readings that explain more of the first answers than the config does. Each draws a
    whole block with the full head for every round, which takes minutes over all rounds."""
    first = compared.first(FIRST_ROUNDS)
    own = _share(_explained(first, first.expected))
    for reading in readings:
        if _share(_drafted_by(first, reading)) > own:
            yield reading


def _drafted_by(compared: Comparison, reading: DrafterReading) -> list[Numbers]:
    trained, drafted = compared.trained, compared.drafted
    counts = [expected_accepted(trained, reading, each, drafted) for each in compared.rounds]
    return _explained(compared, counts)


def _explained(compared: Comparison, counts: Sequence[Counts]) -> list[Numbers]:
    """Return 1 for each round in which the engine accepted as many as a reading does."""
    pairs = zip(counts, compared.rounds, strict=True)
    return [(expected == each.accepted).astype(float) for expected, each in pairs]


def _share(explained: Sequence[Numbers]) -> float:
    return float(np.concatenate(explained).mean())
