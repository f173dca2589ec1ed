"""Prometheus metrics of each drafter, and of loading them.

A canary is judged by them: the acceptance length of a version is 1 + accepted / draft rounds. The
series of a drafter end when it has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.core import Request, SpeculationStats
from paceline.engine.versions import DrafterState, LoadCounts, LoadedDrafter
from paceline.server.tally import Version

MODEL, DRAFTER, VERSION = "model_name", "drafter", "version"
SPECULATION = (  # of SpeculationStats
    ("paceline:drafter_tokens", "Tokens committed to its requests.", "tokens"),
    ("paceline:drafter_draft_rounds", "Rounds with a draft.", "draft_rounds"),
    ("paceline:drafter_draft_tokens", "Tokens drafted.", "draft_tokens"),
    (
        "paceline:drafter_accepted_tokens",
        "Draft tokens accepted, without bonus.",
        "accepted_tokens",
    ),
)
LOADS = (  # of LoadCounts
    ("paceline:drafter_loads", "Drafters that were loaded since the start.", "loaded"),
    ("paceline:drafter_load_failures", "Drafters that could not be loaded.", "failed"),
    ("paceline:drafter_load_seconds", "Seconds that loading them took.", "seconds"),
)


class LoadedDrafters(Protocol):
    """The drafters of a server, as `engine.versions.Versions` has them."""

    counts: LoadCounts

    def list(self) -> Iterable[LoadedDrafter]: ...


class DrafterMetrics(Collector):
    """Metrics of the drafters of one server. `rounds` gives the counts of their rounds."""

    def __init__(
        self,
        model_name: str,
        drafters: LoadedDrafters,
        rounds: Callable[[], Mapping[Version, SpeculationStats]],
    ) -> None:
        self._model, self._drafters, self._rounds = model_name, drafters, rounds
        self._requests: Counter[tuple[str, str, str]] = Counter()

    def note(self, requests: Iterable[Request]) -> None:
        """Count requests that are about to run. Call it on the event loop."""
        for request in requests:
            if request.drafter is not None:
                key = request.drafter, request.drafter_version or "", request.route or ""
                if key not in self._requests:
                    self._forget_left()  # nobody may ask for metrics
                self._requests[key] += 1

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        drafters = [each for each in self._drafters.list() if each.version is not None]
        yield self._states()
        yield self._memory(drafters)
        yield self._request_counts()
        rounds, none = self._rounds(), SpeculationStats()
        stats = {
            (each.name, each.version or ""): rounds.get((each.name, each.version), none)
            for each in drafters
        }
        for name, text, field in SPECULATION:
            family = CounterMetricFamily(name, text, labels=[MODEL, DRAFTER, VERSION])
            for labels, counts in stats.items():
                family.add_metric([self._model, *labels], getattr(counts, field))
            yield family
        for name, text, field in LOADS:
            family = CounterMetricFamily(name, text, labels=[MODEL])
            family.add_metric([self._model], getattr(self._drafters.counts, field))
            yield family

    def _states(self) -> Metric:
        states = Counter(drafter.state for drafter in self._drafters.list())
        family = GaugeMetricFamily("paceline:drafters", "By state.", labels=[MODEL, "state"])
        for state in DrafterState:
            family.add_metric([self._model, state.value], states[state])
        return family

    def _memory(self, drafters: Iterable[LoadedDrafter]) -> Metric:
        labels, text = [MODEL, DRAFTER, VERSION, "part"], "Bytes of its weights and of its KV."
        family = GaugeMetricFamily("paceline:drafter_bytes", text, labels=labels)
        for each in drafters:
            names = [self._model, each.name, each.version or ""]
            family.add_metric([*names, "weights"], each.memory.weights)
            family.add_metric([*names, "kv"], each.memory.kv)
        return family

    def _forget_left(self) -> None:
        """End the series of drafters that have left."""
        loaded = {(each.name, each.version) for each in self._drafters.list()}
        for key in [key for key in self._requests if key[:2] not in loaded]:
            del self._requests[key]

    def _request_counts(self) -> Metric:
        labels, text = [MODEL, DRAFTER, VERSION, "route"], "Streams by drafter and reason for it."
        family = CounterMetricFamily("paceline:drafter_requests", text, labels=labels)
        self._forget_left()
        for key, count in self._requests.items():
            family.add_metric([self._model, *key], count)
        return family
