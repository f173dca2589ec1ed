"""Two evaluations of the same prompts: what changed, and which sets fell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.bench.report import words
from paceline.bench.report.pages import render
from paceline.bench.report.words import plain
from paceline.bench.turns import change_interval
from paceline.core import InvalidRequest
from paceline.core.rounds import counted_rounds
from paceline.evaluate.report import PACKAGE
from paceline.evaluate.result import (
    BLOCK,
    DRAFTER,
    Evaluation,
    EvaluationSettings,
    RequestRow,
    SetResult,
)

LIMIT = 0.05  # a fall of the acceptance length by more than this share is marked
SAME_ROWS = (
    ("prompt_sha256", "of the same prompts (the set, or --prompts, was another)"),
    ("grammar_sha256", "whose answers were bound as these are, to the same grammar"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """A set at one temperature, before and after. `ratio` is AL after ÷ before, `interval` its 95%
    bootstrap over the requests, which are the same. The speeds are over AR, None where nothing was
    timed."""

    name: str
    role: str
    temperature: float
    before: float
    after: float
    interval: list[float] | None
    speed_before: float | None
    speed_after: float | None

    @property
    def ratio(self) -> float:
        return self.after / self.before

    def fell(self, limit: float) -> bool:
        return self.ratio < 1 - limit


def changes(before: Evaluation, after: Evaluation) -> list[Change]:
    """Return the changes of every set and temperature that both have.

    Raises InvalidRequest where the two cannot be compared: field `before` for another model, other
    settings, other prompts, or nothing in common; `tokens` where neither counts a round.
    """
    check_comparable(before, after.model, after.settings)
    old = {(result.set, result.temperature): result for result in before.results}
    new = {(result.set, result.temperature): result for result in after.results}
    common = [key for key in new if key in old]
    if not common:
        raise InvalidRequest("before", sorted({name for name, _ in old}), "a set in common")
    pairs = [(old[key], new[key]) for key in common]
    made = [change for pair in pairs for change in _changes_of(*pair, before, after)]
    if not made:
        expected = f"answers long enough to count a round of {after.block} draft tokens in"
        raise InvalidRequest("tokens", after.settings.tokens, expected)
    return made


def check_comparable(before: Evaluation, model: str, settings: EvaluationSettings) -> None:
    """Raise InvalidRequest (field `before`) for another model or other settings."""
    if before.model != model:
        raise InvalidRequest("before", before.model, f"an evaluation of {model}")
    for name in ("tokens", "seed", "warm"):
        then, now = getattr(before.settings, name), getattr(settings, name)
        if then != now:
            raise InvalidRequest("before", f"{name} {then}", f"an evaluation with {name} {now}")


def _changes_of(
    old: SetResult, new: SetResult, before: Evaluation, after: Evaluation
) -> Iterator[Change]:
    """Yield nothing where either has no rounds to count."""
    for key, expected in SAME_ROWS:
        if [row.get(key) for row in old.rows] != [row.get(key) for row in new.rows]:
            raise InvalidRequest("before", new.set, f"an evaluation {expected}")
    old_al, new_al = old.acceptance[DRAFTER].al, new.acceptance[DRAFTER].al
    if old_al is None or new_al is None:
        return
    sums = [
        np.array([_committed(row, evaluation) for row in result.rows], dtype=float)
        for result, evaluation in ((old, before), (new, after))
    ]
    speeds = [
        None if (speed := evaluation.speed_of(result, DRAFTER)) is None else speed.speedup
        for result, evaluation in ((old, before), (new, after))
    ]
    interval = change_interval(*sums)
    yield Change(new.set, new.role, new.temperature, old_al, new_al, interval, *speeds)


def _committed(row: RequestRow, evaluation: Evaluation) -> tuple[int, int]:
    """The tokens and the rounds of one request, whose ratio is its AL."""
    tokens, block = evaluation.settings.tokens, evaluation.block
    rounds = counted_rounds(row, BLOCK, tokens=tokens, block=block)
    return len(rounds) + sum(round.accepted for round in rounds), len(rounds)


def regressions(before: Evaluation, after: Evaluation, limit: float = LIMIT) -> list[str]:
    """Return a line for each set whose acceptance length fell by more than `limit`, on task or out
    of domain. Raises InvalidRequest where the two cannot be compared."""
    return [
        f"{fall.name} ({fall.role}, T = {plain(fall.temperature)}): "
        f"AL {fall.before:.2f} → {fall.after:.2f} incl. bonus, {words.change(fall.ratio)}"
        for fall in changes(before, after)
        if fall.fell(limit)
    ]


def compare(before: Evaluation, after: Evaluation, limit: float = LIMIT) -> str:
    """Return before and after as a Markdown table, which marks sets that fell by more than `limit`.

    Raises InvalidRequest where the two cannot be compared.
    """
    made = changes(before, after)
    pairs = {(change.name, change.temperature) for change in made}
    alone = {
        when: [
            f"{result.set} (T = {plain(result.temperature)})"
            for result in evaluation.results
            if (result.set, result.temperature) not in pairs
        ]
        for when, evaluation in (("before", before), ("after", after))
    }
    values = {"changes": made, "limit": limit, "alone": alone}
    return render("changes.md", values, PACKAGE).rstrip()
