"""The numbers of the page's Live tab: the server now and in the last minutes.

A ring of samples, one each second, of counters that are kept anyway. Whatever is asked for is the
difference between two samples: nothing is counted for the page, and nothing is kept for long.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.core import InvalidRequest, SpeculationStats
from paceline.core.rounds import ratio
from paceline.engine.config import EngineStats
from paceline.server.page_answers import (
    Holdback,
    Latency,
    LiveGauges,
    LiveGroup,
    LivePoint,
    LiveRounds,
    LiveSnapshot,
    LiveSpeculation,
    PositionCount,
    Quantiles,
    RoundCounts,
    WindowNumbers,
)
from paceline.server.responses import picked
from paceline.server.tally import StreamGroup, Times, Traffic, Version, quantile_of, sums

EVERY = 1.0  # seconds between two samples
KEPT = 600.0  # seconds that the ring looks back on
WINDOW = 60.0  # seconds that numbers are taken over where nothing else is asked for
SHORTEST = 5.0  # seconds of the shortest window, and of the one that each point of a curve is over


@dataclass(frozen=True, slots=True)
class LiveSample:
    """The counters at one time: `clock` is monotonic seconds, `time` seconds since the epoch."""

    clock: float
    time: float
    engine: EngineStats
    groups: Mapping[StreamGroup, SpeculationStats]
    total: SpeculationStats


class Live:
    """Samples `stats` and `traffic`. Belongs to the event loop."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        traffic: Traffic,
        loaded: Callable[[], Collection[Version]] = tuple,
    ) -> None:
        """`loaded` gives the drafters that there are."""
        self._stats, self._traffic, self._loaded = stats, traffic, loaded
        self._ring: deque[LiveSample] = deque(maxlen=1 + round(KEPT / EVERY))
        self.sample()

    async def run(self) -> None:
        """Sample until the task is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            self.sample()

    def sample(self) -> None:
        self._traffic.sum_up(self._loaded(), time.monotonic() - KEPT)
        self._ring.append(self._now())

    def snapshot(self, window: float = WINDOW, since: float = 0.0) -> LiveSnapshot:
        """Return the numbers over the last `window` seconds, or as many as there are; the points of
        the curves are those after `since`, seconds since the epoch.

        Raises InvalidRequest naming the field.
        """
        if not SHORTEST <= window <= KEPT:
            expected = f"seconds from {SHORTEST:g} to {KEPT:g}, which are kept"
            raise InvalidRequest("window", window, expected)
        now = self._now()
        # the latest sample that is no younger than the window, or the oldest there is
        older = (sample for sample in reversed(self._ring) if sample.clock <= now.clock - window)
        before = next(older, self._ring[0])
        times = [stream for stream in self._traffic.times if stream.ended >= before.clock]
        return {
            "time": now.time,
            "window": now.clock - before.clock,
            "now": picked(LiveGauges, now.engine),
            **_difference(before, now),
            "latency": latency(times),
            "holdback": holdback(times),
            "groups": _groups(before, now, times),
            "history": self._history(since),
        }

    def _now(self) -> LiveSample:
        groups, whole = self._traffic.sampled()
        return LiveSample(time.monotonic(), time.time(), self._stats(), groups, whole)

    def _history(self, since: float) -> list[LivePoint]:
        """Return a point for each sample after `since`: gauges of then, the rest over SHORTEST
        before."""
        ring, points, start = list(self._ring), [], 0
        for index, sample in enumerate(ring):
            while start < index - 1 and ring[start + 1].clock <= sample.clock - SHORTEST:
                start += 1
            if sample.time > since and start < index:
                points.append(_point(ring[start], sample))
        return points


def asked(query: Mapping[str, str]) -> dict[str, float]:
    """Return the arguments of snapshot() in a URL. Raises InvalidRequest naming the field."""
    seconds = {}
    for name, text in query.items():
        if name not in ("window", "since"):
            raise InvalidRequest(name, text, "window or since, both in seconds")
        try:
            seconds[name] = float(text)
        except ValueError:
            seconds[name] = math.nan
        if not math.isfinite(seconds[name]):
            raise InvalidRequest(name, text, "a number of seconds")
    return seconds


def _point(before: LiveSample, sample: LiveSample) -> LivePoint:
    stats = sample.total - before.total
    return {
        "time": sample.time,
        **picked(LiveGauges, sample.engine),
        "tokens_per_second": _rate(before, sample, "generation_tokens"),
        "acceptance_length": stats.acceptance_length,
        "draft_length": stats.draft_length,
        "speedup_vs_ar": _speedup(before, sample),
    }


def _difference(before: LiveSample, now: LiveSample) -> WindowNumbers:
    first, last = before.engine, now.engine
    queries = last.prefix_queries - first.prefix_queries
    return {
        "tokens_per_second": _rate(before, now, "generation_tokens"),
        "prompt_tokens_per_second": _rate(before, now, "prompt_tokens"),
        "generation_tokens": last.generation_tokens - first.generation_tokens,
        "prefix_hit_rate": ratio([last.prefix_hits - first.prefix_hits], [queries]),
        "preemptions": last.preemptions - first.preemptions,
        "speedup_vs_ar": _speedup(before, now),
        "speculation": speculation(now.total - before.total),
    }


def _rate(before: LiveSample, now: LiveSample, counter: str) -> float:
    more = getattr(now.engine, counter) - getattr(before.engine, counter)
    return float(more) / max(now.clock - before.clock, 1e-9)


def _speedup(before: LiveSample, now: LiveSample) -> float | None:
    first, last = before.engine, now.engine
    return ratio([last.ar_seconds - first.ar_seconds], [last.decode_seconds - first.decode_seconds])


def _groups(before: LiveSample, now: LiveSample, times: Sequence[Times]) -> list[LiveGroup]:
    shown: list[LiveGroup] = []
    none = SpeculationStats()
    rounds = sums(
        (
            (group.series, last - before.groups.get(group, none))
            for group, last in now.groups.items()
        ),
        none,
    )
    by_group: dict[StreamGroup, list[Times]] = {}
    for stream in times:
        by_group.setdefault(stream.group.series, []).append(stream)
    for group in sorted(rounds, key=lambda group: (group.drafter is None, str(group.drafter))):
        stats, ended = rounds[group], by_group.get(group, [])
        if stats.tokens or ended:
            entry: LiveGroup = {
                "drafter": group.drafter,
                "cohort": group.cohort,
                "tokens": stats.tokens,
                "speedup_vs_ar": None if group.drafter is None else stats.speedup_vs_ar,
                "speculation": speculation(stats),
                "latency": latency(ended),
            }
            shown.append(entry)
    return shown


def speculation(stats: SpeculationStats) -> LiveSpeculation:
    """Return counts of rounds, and what became of their drafts."""
    parts = {name: _rounds(part) for name, part in stats.parts.items() if part.rounds}
    return {**_rounds(stats), "forced_tokens": stats.forced_tokens, "parts": parts}


def _rounds(stats: SpeculationStats) -> LiveRounds:
    counts = picked(RoundCounts, stats)
    positions: list[PositionCount] = [
        {"drafted": drafted, "accepted": accepted} for drafted, accepted in stats.by_position()
    ]
    return {**counts, "positions": positions}


def latency(times: Sequence[Times]) -> Latency:
    """Return quantiles in seconds of the streams that ended; null where none has the number."""
    metrics = [stream.metrics for stream in times]
    return {
        "streams": len(times),
        "queue": _quantiles(metric.queue for metric in metrics),
        "ttft": _quantiles(metric.ttft for metric in metrics),
        "tpot": _quantiles(metric.tpot for metric in metrics),
        "total": _quantiles(metric.total for metric in metrics),
    }


def _quantiles(values: Iterable[float | None]) -> Quantiles | None:
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    return {
        "p50": quantile_of(ordered, 0.5),
        "p90": quantile_of(ordered, 0.9),
        "p99": quantile_of(ordered, 0.99),
    }


def holdback(times: Sequence[Times]) -> Holdback | None:
    """Return the median TPOT of requests that were held back from drafting ÷ of those that were
    not; None where either is missing."""
    held, others = (
        sorted(
            stream.metrics.tpot
            for stream in times
            if stream.metrics.held_back is which and stream.metrics.tpot is not None
        )
        for which in (True, False)
    )
    if not (held and others):
        return None
    speedup = quantile_of(held, 0.5) / quantile_of(others, 0.5)
    return {"speedup": speedup, "held_back": len(held), "others": len(others)}
