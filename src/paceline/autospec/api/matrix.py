"""The matrix of versions and cohorts: what a version was scored, and what it did for requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from paceline.autospec.api.answers import AlCell, ScoredAl, SeenAl
from paceline.autospec.api.curves import WEEK, al_of
from paceline.autospec.api.traced import BETWEEN, TracedSums
from paceline.autospec.store import ALL, CohortScore
from paceline.autospec.sums import FloatArray, N, R, T

Place = tuple[str, str]  # version, cohort


def al_cells(
    scores: Collection[CohortScore],
    traced: TracedSums,
    versions: Collection[str],
    cohorts: Collection[str],
) -> Iterator[AlCell]:
    """Yield the cells that have anything, of these versions and cohorts; "" is all cohorts."""
    scored = {(score.name, score.cohort): _scored(score) for score in scores}
    seen = _seen(traced)
    for version in versions:
        for cohort in cohorts:
            place = version, cohort
            if place in scored or place in seen:
                yield {
                    "version": version,
                    "cohort": cohort,
                    "scored": scored.get(place),
                    "seen": seen.get(place),
                }


def _scored(score: CohortScore) -> ScoredAl:
    return {
        "al": score.al,
        "low": score.low,
        "high": score.high,
        "rounds": score.rounds,
        "time": score.time,
        "source": score.source,
    }


def _seen(traced: TracedSums) -> dict[Place, SeenAl]:
    """Return what each drafter did in each cohort in the last week, and in all of them."""
    al, speed = _week(traced, "al"), _week(traced, "speed")
    return {place: _seen_al(sums, speed.get(place)) for place, sums in al.items() if sums[R] > 0}


def _seen_al(sums: FloatArray, speed: FloatArray | None) -> SeenAl:
    value, low, high = al_of(sums)
    return {
        "al": value,
        "low": low,
        "high": high,
        "requests": int(sums[N]),
        "speedup": None if speed is None or not speed[R] else float(speed[T] / speed[R]),
    }


def _week(traced: TracedSums, name: str) -> dict[Place, FloatArray]:
    cells = traced.al if name == "al" else traced.speed
    sums = cells.between(traced.until - WEEK, traced.until).sum(2)
    found: dict[Place, FloatArray] = {}
    for row, label in enumerate(cells.cohorts):
        cohort, drafter = label.split(BETWEEN)
        for place in ((drafter, cohort), (drafter, ALL)):
            found[place] = found.get(place, 0.0) + sums[:, row]
    return found
