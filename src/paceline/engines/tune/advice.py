"""The settings worth having, from what was measured: each with its gain and the gain's interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.engines.tune.acceptance import by_context
from paceline.engines.tune.law import Point
from paceline.engines.tune.measure import DRAWS, TuneMeasurement
from paceline.engines.tune.steps import Numbers

EQUAL = 0.995  # of the best speed from which on a shorter draft is as good
LEAST_GAIN = 1.02  # over AR below which speculation is not worth having
FEWEST = 30  # rounds that tell the acceptance at a context
INTACT = 0.9  # of the acceptance length at short contexts that counts as no less


class Gain(NamedTuple):
    """How many times as fast, with its 95% interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Numbers) -> Gain:
        low, high = np.percentile(ratios, [2.5, 97.5])
        return cls(float(ratios.mean()), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Setting:
    """The best draft length for so many requests at once; 0 is speculation off.

    `speeds` are tokens per second of one request by draft length, from 0. `in_table` is the gain
    over AR where the draft length comes from a table by batch size: there the drafter follows the
    text also at draft length 0.
    """

    requests: int
    draft_len: int
    acceptance_length: float
    over_ar: Gain
    over_present: Gain
    in_table: Gain
    speeds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ContextShare:
    """Acceptance length (incl. bonus) of rounds after `start` tokens and more."""

    start: int
    rounds: int
    acceptance_length: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set. `off_from` is the least number of requests from which on speculation does not
    pay; `window` the context after which the drafter accepts less; None where there is none."""

    present_draft_len: int
    survival: tuple[float, ...]
    rounds: int
    settings: tuple[Setting, ...]
    contexts: tuple[ContextShare, ...]
    off_from: int | None
    window: int | None
    seconds: float
    asked: int
    notes: tuple[str, ...] = field(default=())

    @property
    def table(self) -> list[tuple[int, int, int]]:
        """Draft lengths by batch size, as (first, last, draft length); the last range ends at the
        most requests that were measured."""
        ranges: list[tuple[int, int, int]] = []
        for setting, following in zip(self.settings, (*self.settings[1:], None), strict=True):
            # Between two measured sizes the one that is nearer in proportion counts.
            last = setting.requests if following is None else _between(setting, following)
            first = ranges[-1][1] + 1 if ranges else 1
            if ranges and ranges[-1][2] == setting.draft_len:
                first = ranges.pop()[0]
            ranges.append((first, last, setting.draft_len))
        return ranges

    @property
    def pays(self) -> bool:
        """Whether speculation pays for any number of requests that was measured."""
        return any(setting.draft_len for setting in self.settings)

    def setting_for(self, requests: int) -> Setting:
        """Return the setting of the measured size that is nearest to `requests`."""
        return min(self.settings, key=lambda each: abs(np.log(each.requests / requests)))

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "table": self.table, "pays": self.pays}


def advise(measured: TuneMeasurement) -> Advice:
    """Choose the settings."""
    settings = tuple(_settings(measured))
    contexts = tuple(_contexts(measured))
    off = [setting.requests for setting in settings if not setting.draft_len]
    paying = max((setting.requests for setting in settings if setting.draft_len), default=0)
    return Advice(
        present_draft_len=measured.draft_len,
        survival=tuple(float(share) for share in measured.acceptance.survival),
        rounds=measured.acceptance.rounds,
        settings=settings,
        contexts=contexts,
        off_from=min((requests for requests in off if requests > paying), default=None),
        window=_window(contexts),
        seconds=measured.seconds,
        asked=measured.asked,
        notes=tuple(measured.notes),
    )


def _settings(measured: TuneMeasurement) -> Iterator[Setting]:
    lengths = measured.acceptance.lengths(DRAWS)
    most = measured.draft_len
    filled = measured.costs.fill(range(most + 1))
    for requests in measured.costs.sizes:
        plain = 1 / measured.costs.plain[requests]
        speeds = {0: plain}
        for draft_len in range(1, most + 1):
            speeds[draft_len] = lengths[:, draft_len] / filled[Point(requests, draft_len)]
        best = _best({draft_len: float(draws.mean()) for draft_len, draws in speeds.items()})
        chosen = speeds[best]
        in_table = 1 / filled[Point(requests, 0)] if best == 0 else chosen
        yield Setting(
            requests=requests,
            draft_len=best,
            acceptance_length=float(lengths[:, best].mean()),
            over_ar=Gain.of(chosen / plain),
            over_present=Gain.of(chosen * measured.present[requests]),
            in_table=Gain.of(in_table / plain),
            speeds=tuple(float(draws.mean()) for draws in speeds.values()),
        )


def _best(speeds: Mapping[int, float]) -> int:
    """Return the shortest draft length that is as good as the best; 0 where none pays."""
    most = max(speeds.values())
    best = min(length for length, speed in speeds.items() if speed >= EQUAL * most)
    return best if speeds[best] >= LEAST_GAIN * speeds[0] else 0


def _between(setting: Setting, following: Setting) -> int:
    middle = int(np.sqrt(setting.requests * following.requests))
    return max(setting.requests, min(middle, following.requests - 1))


def _contexts(measured: TuneMeasurement) -> Iterator[ContextShare]:
    for start, acceptance in by_context(measured.answers, measured.draft_len).items():
        if acceptance.rounds >= FEWEST:
            lengths = acceptance.lengths(DRAWS)[:, -1]
            low, high = np.percentile(lengths, [2.5, 97.5])
            mean = float(acceptance.mean_lengths[-1])
            yield ContextShare(start, acceptance.rounds, mean, float(low), float(high))


def _window(contexts: Sequence[ContextShare]) -> int | None:
    """Return the context from which on the drafter surely accepts less than before it."""
    for index, share in enumerate(contexts[1:], 1):
        before = max(contexts[:index], key=lambda each: each.rounds)
        if share.high < INTACT * before.low:
            return share.start
    return None
