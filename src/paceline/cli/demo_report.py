"""What `make demo-autospec` says at its end: acceptance in each period, and what was checked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

from paceline.autospec.loop.journal import ChangeOrigin, ChangeRecord, ChangeStage
from paceline.cli.demo_stages import minutes, say
from paceline.cli.demo_traffic import ShopAnswer, differing, mean_length
from paceline.cli.show import plain_table
from paceline.core.cohorts import Cohort

BEFORE_SECONDS = 60.0
SAMPLED = 8  # answers of each period whose text is compared
LEAST_RECOVERY = 0.8
BAD = "bold red"
GOOD = "green"


@dataclass
class ShopPeriods:
    """When things happened, in seconds since the epoch; 0: not yet.

    changed     the traffic
    recovered   the last corpus was live
    measured    when the measurement behind the last change ended
    pushed      the bad drafter; `verdict` is how its change ended
    changes     of autospec, that were not pushed: corpora, and after them weights
    weights     whether weights were to be trained
    """

    changed: float
    recovered: float = 0.0
    measured: float = 0.0
    pushed: float = 0.0
    verdict: ChangeRecord | None = None
    changes: list[ChangeRecord] = field(default_factory=list)
    weights: bool = False

    @property
    def trained(self) -> ChangeRecord | None:
        """The change of weights; None where there was none."""
        found = (c for c in self.changes if c.origin is ChangeOrigin.WEIGHTS)
        return next(found, None)

    def of(self, answers: Sequence[ShopAnswer]) -> dict[str, list[ShopAnswer]]:
        """Return the answers of each period: before the change; at the fall, until the first new
        drafter was tried; while new drafters were tried; with corpora, and while weights were
        tried, if they were; after; and while the bad drafter was tried. Those that lasted no time
        are left out."""
        tried = tried_weights = live = self.recovered
        for change in self.changes:
            if change.progress.canary is not None:
                tried = min(tried, change.progress.canary.began)
        weights = self.trained
        if weights is not None and weights.progress.canary is not None:
            tried_weights = weights.progress.canary.began
            live = weights.ended or self.measured
        spans = {
            "before": (self.changed - BEFORE_SECONDS, self.changed),
            "at the fall": (self.changed, tried),
            "trying": (tried, self.recovered),
            "with corpora": (self.recovered, tried_weights),
            "trying weights": (tried_weights, live),
            "after": (live, self.measured or self.pushed),
            "bad one tried": (self.pushed, float("inf")),
        }
        return {
            name: [answer for answer in answers if start <= answer.time < end]
            for name, (start, end) in spans.items()
            if end > start > 0
        }


def compare_texts(
    url: str, answers: Sequence[ShopAnswer], periods: ShopPeriods
) -> tuple[int, list[tuple[ShopAnswer, ShopAnswer]]]:
    """Ask some requests of each period again with speculation off. Return how many, and the
    answers that differ."""
    draw, sample = random.Random(), []
    for of_period in periods.of(answers).values():
        good = [answer for answer in of_period if not answer.error]
        sample += draw.sample(good, min(SAMPLED, len(good)))
    return len(sample), differing(url, sample)


def report(
    console: Console,
    periods: ShopPeriods,
    answers: Sequence[ShopAnswer],
    texts: tuple[int, list[tuple[ShopAnswer, ShopAnswer]]],
) -> int:
    """Print what happened, in numbers. Return 0 where all is as it should be, else 1."""
    by_period = periods.of(answers)
    table = plain_table("", "requests", "AL", "AL en", "AL de", "TPOT ms", left=[""])
    for name, of_period in by_period.items():
        lengths = [mean_length(of_period)]
        lengths += [
            mean_length(a for a in of_period if a.language == language) for language in ("en", "de")
        ]
        cells = ["–" if al is None else f"{al:.2f}" for al in lengths]
        table.add_row(name, str(len(of_period)), *cells, _tpot(of_period))
    console.print()
    console.print(table)
    say(console, "AL: acceptance length, incl. bonus", "dim")
    verdicts = [
        _recovery(by_period),
        *([_weights_gain(periods.trained, by_period)] if periods.weights else []),
        *(_adaptation(change, periods.changed) for change in reversed(periods.changes)),
        _stopped(periods.verdict),
        _failures(answers),
        _same(*texts),
    ]
    for is_good, text in verdicts:
        say(console, text, GOOD if is_good else BAD)
    return 0 if all(is_good for is_good, _ in verdicts) else 1


def _recovery(by_period: dict[str, list[ShopAnswer]]) -> tuple[bool, str]:
    before, fall, after = (
        mean_length(by_period.get(name, ())) for name in ("before", "at the fall", "after")
    )
    if before is None or fall is None or after is None:
        return False, "acceptance was not measured in each period"
    if fall >= before:
        return False, f"AL did not fall: {before:.2f} before, {fall:.2f} behind the change"
    share = (after - fall) / (before - fall)
    text = f"AL {before:.2f} before, {fall:.2f} at the fall, {after:.2f} after: {share:.0%} of what"
    return share >= LEAST_RECOVERY, f"{text} was lost came back ({LEAST_RECOVERY:.0%} is the bar)"


def _weights_gain(
    weights: ChangeRecord | None, by_period: dict[str, list[ShopAnswer]]
) -> tuple[bool, str]:
    """Say what corpus and weights have won together, for the cohort that got both."""
    if weights is None:
        return False, "no weights were trained"
    if weights.stage is not ChangeStage.LIVE:
        return False, f"no weights went live: {weights.reason}"
    language = Cohort.parse(weights.cohort).language
    before, corpus, after = (
        mean_length(answer for answer in by_period.get(name, ()) if answer.language == language)
        for name in ("before", "with corpora", "after")
    )
    if before is None or after is None:
        return False, "acceptance was not measured in each period"
    told = "" if corpus is None else f", {corpus:.2f} with its corpus"
    text = f"{weights.cohort}: AL {before:.2f} before{told}, {after:.2f} with corpus and weights"
    return after > before, f"{text} (more than before is the bar)"


def _adaptation(change: ChangeRecord, changed: float) -> tuple[bool, str]:
    """Say how long a change took: until autospec decided, from there until it drafted for the
    first request, and until it was live."""
    canary = change.progress.canary
    where = f"{change.version} for {change.cohort}"
    if canary is None or change.ended is None or change.stage is not ChangeStage.LIVE:
        return False, f"{where}: {change.stage}: {change.reason}"
    made = "trained" if change.origin is ChangeOrigin.WEIGHTS else "built"
    return True, (
        f"{where}: decided {minutes(change.created - changed)} behind the change, {made}, scored "
        f"and loaded in {minutes(canary.began - change.created)}, live after a canary of "
        f"{minutes(change.ended - canary.began)}"
    )


def _stopped(verdict: ChangeRecord | None) -> tuple[bool, str]:
    if verdict is None:
        return False, "the bad drafter was not judged"
    seconds = minutes((verdict.ended or verdict.changed) - verdict.created)
    is_stopped = verdict.stage is ChangeStage.STOPPED
    return is_stopped, f"bad drafter: {verdict.stage} after {seconds}. {verdict.reason}"


def _failures(answers: Sequence[ShopAnswer]) -> tuple[bool, str]:
    failed = [answer for answer in answers if answer.error]
    if failed:
        return False, f"{len(failed)} of {len(answers)} requests failed, as {failed[0].error}"
    return True, f"none of {len(answers)} requests failed"


def _same(count: int, different: Sequence[tuple[ShopAnswer, ShopAnswer]]) -> tuple[bool, str]:
    if different:
        return False, f"{len(different)} of {count} texts differ from those without speculation"
    return count > 0, f"{count} texts were asked again with speculation off: the same, by token"


def _tpot(answers: Sequence[ShopAnswer]) -> str:
    times = [answer.tpot for answer in answers if answer.tpot]
    return f"{1e3 * sum(times) / len(times):.1f}" if times else "–"
