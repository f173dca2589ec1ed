"""What the server is doing now, and did in the last minutes: the page's Live tab.

A ring of samples, one each second, of counters that are kept anyway. Whatever is asked for is the
difference between two samples: nothing is counted for the page, and nothing is kept for long.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any

from paceline.core import InvalidRequest
from paceline.engine.config import EngineStats
from paceline.server.metrics import quantile_of
from paceline.server.tally import Group, Lengths, Tally, Times, Traffic, total

EVERY = 1.0  # seconds between two samples
KEPT = 600.0  # seconds that the ring looks back on
WINDOW = 60.0  # seconds that numbers are taken over where nothing else is asked for
SHORTEST = 5.0  # seconds of the shortest window, and of the one that each point of a curve is over
QUANTILES = (0.5, 0.9, 0.99)
LATENCIES = ("queue", "ttft", "tpot", "total")


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters at one time: `clock` is monotonic seconds, `time` seconds since the epoch."""

    clock: float
    time: float
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    decode_seconds: float = 0.0
    ar_seconds: float = 0.0
    tallies: dict[Group, Tally] = field(default_factory=dict)
    total: Tally = field(default_factory=Tally)


class Live:
    """Samples `stats` and `traffic`. Belongs to the event loop."""

    def __init__(self, stats: Callable[[], EngineStats], traffic: Traffic) -> None:
        self._stats, self._traffic = stats, traffic
        self._ring: deque[Sample] = deque(maxlen=1 + round(KEPT / EVERY))
        self.sample()

    async def run(self) -> None:
        """Samples until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            self.sample()

    def sample(self) -> None:
        self._ring.append(self._now())

    def snapshot(self, window: float = WINDOW, since: float = 0.0) -> dict[str, Any]:
        """Numbers over the last `window` seconds, or as many as there are; the points of the curves
        are those after `since`, seconds since the epoch.

        Raises InvalidRequest naming the field.
        """
        if not SHORTEST <= window <= KEPT:
            expected = f"seconds from {SHORTEST:g} to {KEPT:g}, which are kept"
            raise InvalidRequest("window", window, expected)
        now = self._now()
        before = self._before(now.clock - window)
        times = [one for one in self._traffic.times if one.ended >= before.clock]
        return {
            "time": now.time,
            "window": now.clock - before.clock,
            "now": {
                "running": now.running,
                "waiting": now.waiting,
                "kv_usage": now.kv_usage,
            },
            **_difference(before, now),
            "latency": latency(times),
            "holdback": holdback(times),
            "groups": _groups(before, now, times),
            "history": self._history(since),
        }

    # -- inside -----------------------------------------------------------------------------------

    def _now(self) -> Sample:
        stats, tallies = self._stats(), self._traffic.copies()
        return Sample(
            clock=time.monotonic(),
            time=time.time(),
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            preemptions=stats.preemptions,
            prompt_tokens=stats.prompt_tokens,
            generation_tokens=stats.generation_tokens,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
            decode_seconds=stats.decode_seconds,
            ar_seconds=stats.ar_seconds,
            tallies=tallies,
            total=total(tallies.values()),
        )

    def _before(self, clock: float) -> Sample:
        """The latest sample that is no younger than `clock`, or the oldest there is."""
        older = (one for one in reversed(self._ring) if one.clock <= clock)
        return next(older, self._ring[0])

    def _history(self, since: float) -> list[dict[str, Any]]:
        """A point for each sample after `since`: gauges of then, the rest over SHORTEST before."""
        ring, points, start = list(self._ring), [], 0
        for index, sample in enumerate(ring):
            while start < index - 1 and ring[start + 1].clock <= sample.clock - SHORTEST:
                start += 1
            if sample.time > since and start < index:
                points.append(self._point(ring[start], sample))
        return points

    def _point(self, before: Sample, sample: Sample) -> dict[str, Any]:
        lengths = sample.total.lengths.combined(before.total.lengths, sub)
        return {
            "time": sample.time,
            "running": sample.running,
            "waiting": sample.waiting,
            "kv_usage": sample.kv_usage,
            "tokens_per_second": _rate(before, sample, "generation_tokens"),
            "acceptance_length": lengths.acceptance_length,
            "draft_length": _draft_length(lengths),
            "speedup_vs_ar": _ratio(
                sample.ar_seconds - before.ar_seconds,
                sample.decode_seconds - before.decode_seconds,
            ),
        }


def asked(query: Mapping[str, str]) -> dict[str, float]:
    """The arguments of snapshot() in a URL. Raises InvalidRequest naming the field."""
    found = {}
    for name, text in query.items():
        if name not in ("window", "since"):
            raise InvalidRequest(name, text, "window or since, both in seconds")
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        if not math.isfinite(found[name]):
            raise InvalidRequest(name, text, "a number of seconds")
    return found


def _difference(before: Sample, now: Sample) -> dict[str, Any]:
    """What all requests did between two samples."""
    queries = now.prefix_queries - before.prefix_queries
    ar_seconds = now.ar_seconds - before.ar_seconds
    return {
        "tokens_per_second": _rate(before, now, "generation_tokens"),
        "prompt_tokens_per_second": _rate(before, now, "prompt_tokens"),
        "generation_tokens": now.generation_tokens - before.generation_tokens,
        "prefix_hit_rate": _ratio(now.prefix_hits - before.prefix_hits, queries),
        "preemptions": now.preemptions - before.preemptions,
        "speedup_vs_ar": _ratio(ar_seconds, now.decode_seconds - before.decode_seconds),
        "speculation": speculation(now.total.combined(before.total, sub)),
    }


def _groups(before: Sample, now: Sample, times: Sequence[Times]) -> list[dict[str, Any]]:
    """By drafter and cohort, those that did something; AR requests last."""
    shown = []
    for group in sorted(now.tallies, key=lambda one: (one.drafter is None, str(one.drafter))):
        tally = now.tallies[group].combined(before.tallies.get(group, Tally()), sub)
        own = [one for one in times if one.group == group]
        if not (tally.tokens or own):
            continue
        drafts = group.drafter is not None
        shown.append(
            {
                "drafter": group.drafter,
                "cohort": group.cohort,
                "tokens": tally.tokens,
                "speedup_vs_ar": _ratio(tally.ar_seconds, tally.seconds) if drafts else None,
                "speculation": speculation(tally),
                "latency": latency(own),
            }
        )
    return shown


def speculation(tally: Tally) -> dict[str, Any]:
    """Rounds, and what became of their drafts."""
    parts = {name: _lengths(lengths) for name, lengths in tally.parts.items() if lengths.rounds}
    return {**_lengths(tally.lengths), "forced_tokens": tally.forced, "parts": parts}


def _lengths(lengths: Lengths) -> dict[str, Any]:
    return {
        "rounds": lengths.rounds,
        "draft_rounds": lengths.draft_rounds,
        "draft_tokens": lengths.draft_tokens,
        "accepted_tokens": lengths.accepted_tokens,
        "acceptance_length": lengths.acceptance_length,
        "draft_length": _draft_length(lengths),
        "rounds_by_draft_length": lengths.drafted,
        "positions": [
            {"drafted": drafted, "accepted": accepted}
            for drafted, accepted in lengths.by_position()
        ],
    }


def latency(times: Iterable[Times]) -> dict[str, Any]:
    """Quantiles in seconds of the streams that ended; null where no stream has the number."""
    times = list(times)
    shown: dict[str, Any] = {"streams": len(times)}
    for name in LATENCIES:
        values = sorted(value for one in times if (value := getattr(one, name)) is not None)
        shown[name] = (
            {f"p{100 * share:g}": quantile_of(values, share) for share in QUANTILES}
            if values
            else None
        )
    return shown


def holdback(times: Iterable[Times]) -> dict[str, Any] | None:
    """Median TPOT of requests that were held back from drafting ÷ of those that were not; None
    where either is missing."""
    groups: dict[bool, list[float]] = {True: [], False: []}
    for one in times:
        if one.held_back is not None and one.tpot is not None:
            groups[one.held_back].append(one.tpot)
    if not all(groups.values()):
        return None
    held, others = (quantile_of(sorted(groups[which]), 0.5) for which in (True, False))
    return {
        "speedup": held / others,
        "held_back": len(groups[True]),
        "others": len(groups[False]),
    }


def _draft_length(lengths: Lengths) -> float | None:
    """Mean over all rounds, those without a draft included."""
    return _ratio(lengths.draft_tokens, lengths.rounds)


def _rate(before: Sample, now: Sample, counter: str) -> float:
    return (getattr(now, counter) - getattr(before, counter)) / max(now.clock - before.clock, 1e-9)


def _ratio(count: float, of: float) -> float | None:
    return count / of if of > 0 else None
