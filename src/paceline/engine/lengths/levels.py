"""Levels of drafting: with all drafts, with look-ups alone, with none. The clock says which pays.

Draft lengths follow the cost table, which knows what rows and drafts cost. It does not know what
else comes with a drafter: features that are tapped, texts that are indexed, caches that it fills.
So with many requests at once the levels of drafting are tried one beside the other, and the one
with the most tokens per second stays. A trial is short, and after one in vain the next is twice as
far away. With few requests all is drafted: what comes with a drafter is a few hundredths of a step
there, and a text that begins to copy would be missed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from paceline.engine.step_cost import StepCost

CLEAR = 1.15  # times the plain speed: drafting that brings as much is not compared
KEPT = 1 - 1 / 128  # what a step leaves of those before it
FIRST, LONGEST = 64, 1024  # steps between two trials
LESS, MORE = 16, 48  # steps of a trial of no drafting, and of others: a draft needs its context
MANY = 5  # requests at once, from which levels are compared
MARGIN = 1.01  # times the speed: what more drafting must bring to stay
HOPELESS = 0.95  # times the speed: a trial that brings less ends early
COHORTS = 256  # that are remembered as tried


class Level(IntEnum):
    """The drafts of a step. LOOK_UPS leaves out the drafts that a drafter must be asked for, and
    the features that it would see for them."""

    NONE = 0
    LOOK_UPS = 1
    ALL = 2


@dataclass(slots=True)
class _Speed:
    """Decayed sums over the steps of one level."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.steps += 1
        self.tokens = KEPT * self.tokens + tokens
        self.seconds = KEPT * self.seconds + seconds

    def __call__(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Load:
    """The level that stays, the one that is on trial, and the steps that are left: of the trial, or
    until the next one."""

    stays: Level = Level.ALL
    trial: Level | None = None
    left: int = MORE
    gap: int = FIRST
    speeds: dict[Level, _Speed] = field(default_factory=lambda: {each: _Speed() for each in Level})
    last: list[Level] = field(default_factory=lambda: sorted(Level))  # tried, the latest last
    cohorts: set[Hashable] = field(default_factory=set)  # that have had the level ALL

    @property
    def level(self) -> Level:
        return self.stays if self.trial is None else self.trial

    @property
    def hopeless(self) -> bool:
        """Return whether the trial has shown already that it is in vain."""
        if self.trial is None or self.speeds[self.trial].steps < LESS:
            return False
        return self.speeds[self.trial]() < HOPELESS * self.speeds[self.stays]()

    def begin(self, trial: Level) -> None:
        self.trial, self.speeds[trial] = trial, _Speed()
        self.last.remove(trial)
        self.last.append(trial)
        self.left = LESS if trial is Level.NONE else MORE

    def end(self) -> None:
        """Decide which level stays. A trial that saw hardly a step without prompts says nothing."""
        trial, stays = self.trial, self.stays
        assert trial is not None
        needed = self.speeds[stays]() * (MARGIN if trial > stays else 1.0)
        if self.speeds[trial].steps >= LESS // 2 and self.speeds[trial]() > needed:
            self.stays, self.gap = trial, FIRST
        else:
            self.gap = min(2 * self.gap, LONGEST)
        self.trial, self.left = None, self.gap


class Levels:
    """The level of one drafter, by how many requests decode together."""

    def __init__(self, cost: StepCost, looks_up: bool) -> None:
        """`looks_up` says that the drafter has drafts that it need not be asked for."""
        self._cost = cost
        self._choices = [each for each in Level if looks_up or each is not Level.LOOK_UPS]
        self._loads: dict[int, _Load] = {}

    def level(self, decoding: int, cohorts: Iterable[Hashable]) -> Level:
        """Return the level of a step in which so many requests decode, of these cohorts. Where less
        than all is drafted, a cohort that is new there begins a trial of all."""
        if decoding < MANY:
            return Level.ALL
        load = self._load(decoding)
        new = [cohort for cohort in cohorts if cohort not in load.cohorts]
        if new and len(load.cohorts) < COHORTS:
            load.cohorts.update(new)
            if load.stays is not Level.ALL and load.trial is not Level.ALL:
                load.begin(Level.ALL)
        return load.level

    def observe(self, decoding: int, tokens: int, seconds: float) -> None:
        """Count a step of `decoding` requests, without prompts, that committed `tokens` and took
        `seconds`, drafting included."""
        if decoding < MANY:
            return
        load = self._load(decoding)
        load.speeds[load.level].add(*self._as_full(decoding, tokens, seconds))
        load.left -= 1
        if load.left > 0 and not load.hopeless:
            return
        if load.trial is not None:
            load.end()
            return
        trial = self._next(load, decoding)
        if trial is None:
            load.left = load.gap
        else:
            load.begin(trial)

    def observe_mixed(self, decoding: int) -> None:
        """Count a step with prompts, or with requests of other drafters. Its time says nothing
        here, but no trial lasts for ever."""
        if decoding < MANY:
            return
        load = self._load(decoding)
        if load.trial is not None:
            load.left -= 1
            if load.left <= 0:
                load.end()

    def observe_plain(self, decoding: int, seconds: float) -> None:
        """Count a step, without prompts, of requests that have no drafter."""
        if decoding < MANY:
            return
        load = self._load(decoding)
        load.speeds[Level.NONE].add(*self._as_full(decoding, decoding, seconds))

    def _next(self, load: _Load, decoding: int) -> Level | None:
        """Return the level to try: of those that could be better the one tried longest ago."""
        choices = [level for level in load.last if level in self._choices]
        choices.remove(load.stays)
        plain = load.speeds[Level.NONE]() or 1 / self._full_step(decoding)
        if load.stays is not Level.NONE and load.speeds[load.stays]() > CLEAR * plain:
            choices = [level for level in choices if level > load.stays]
        return choices[0] if choices else None

    def _load(self, decoding: int) -> _Load:
        return self._loads.setdefault(_most(decoding), _Load())

    def _as_full(self, decoding: int, tokens: int, seconds: float) -> tuple[float, float]:
        """Tokens of each request, and the seconds that the step would have taken with as many
        requests as its load may have: so that the steps of one load can be compared."""
        share = self._full_step(decoding) / self._cost(decoding, decoding)
        return tokens / decoding, seconds * share

    def _full_step(self, decoding: int) -> float:
        most = _most(decoding)
        return self._cost(most, most)


def _most(decoding: int) -> int:
    """Return how many requests the load of `decoding` requests may have: a power of two."""
    return 1 << max(0, decoding - 1).bit_length()
