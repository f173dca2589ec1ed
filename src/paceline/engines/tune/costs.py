"""Seconds of a round at every draft length, from those that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.engines.tune.law import Point, StepLaw
from paceline.engines.tune.steps import Numbers

Draws = Mapping[Point, Numbers]
GROWING = 0.5  # of the drafter's seconds, where one measurement cannot tell how they grow
LEAST = 0.2  # of a measured round that is left when the drafter's part is taken off


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds of a step without speculation by requests, and of rounds with drafts by requests and
    draft length; each as DRAWS that are equally likely.

    `drafted` may have draft length 0: the drafter keeps up with the text, and nothing is drafted.
    """

    plain: Mapping[int, Numbers]
    drafted: Draws

    @property
    def sizes(self) -> list[int]:
        """Numbers of requests that were measured."""
        return sorted(self.plain)

    def fill(self, draft_lens: range) -> Draws:
        """Return the seconds of rounds of every size and draft length.

        At measured draft lengths they are the measured ones; between and beyond these they follow
        a law fitted to all of them, moved so that it goes through the neighbours.
        """
        law = StepLaw.fit({point: float(draws.mean()) for point, draws in self.drafted.items()})
        filled: dict[Point, Numbers] = {}
        for requests in self.sizes:
            known = sorted(p.draft_len for p in self.drafted if p.requests == requests)
            moves = [self.drafted[p] / law(p) for p in (Point(requests, k) for k in known)]
            for draft_len in draft_lens:
                point = Point(requests, draft_len)
                filled[point] = law(point) * _between(known, moves, draft_len)
        return filled


@dataclass(frozen=True, slots=True)
class DrafterSeconds:
    """Seconds of the drafter in a round, as draws: base + per_row × the places of all blocks."""

    base: Numbers
    per_row: Numbers

    @classmethod
    def of(cls, measured: Draws, context: Numbers | float = 0.0) -> DrafterSeconds:
        """Learn it from one or two measured points. `context` seconds of each were for one text
        that was far longer than usual texts, and are no part of it."""
        points = sorted(measured)
        first, last = points[0], points[-1]
        usual = np.maximum(0.0, measured[first] - context)
        if first == last:
            part = GROWING * usual
            return cls(usual - part, part / first.rows)
        slope = (measured[last] - measured[first]) / (last.rows - first.rows)
        slope = np.clip(slope, 0.0, measured[last] / last.rows)
        return cls(np.maximum(0.0, usual - slope * first.rows), slope)

    def __call__(self, point: Point) -> Numbers:
        seconds: Numbers = self.base + self.per_row * point.rows
        return seconds


def separated(
    rounds: Draws, undrafted: Mapping[int, Numbers], drafter: DrafterSeconds
) -> RoundCosts:
    """Take a drafter's seconds off those of measured steps.

    `rounds` are rounds with drafts. `undrafted` are steps, by requests, of the same engine that
    verified no draft but still ran the drafter for as many tokens.
    """
    plain, drafted = dict[int, Numbers](), dict(rounds)
    for point in rounds:
        if point.requests not in undrafted:
            continue
        step, full = undrafted[point.requests], drafter(point)
        alone = Point(point.requests, 0)
        plain[point.requests] = np.maximum(LEAST * step, step - full)
        drafted[alone] = plain[point.requests] + drafter(alone)
    return RoundCosts(plain, drafted)


def _between(known: list[int], values: list[Numbers], at: int) -> Numbers:
    """Interpolate between values at rising places; the first and last hold beyond them."""
    above = next((index for index, place in enumerate(known) if place >= at), len(known) - 1)
    below = max(0, above - 1)
    if known[above] <= at or above == below:
        return values[above]
    share = (at - known[below]) / (known[above] - known[below])
    mixed: Numbers = (1 - share) * values[below] + share * values[above]
    return mixed
