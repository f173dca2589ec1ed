"""Prometheus metrics under the names that vLLM's dashboards read.

Gauges and counters are read from the engine when somebody scrapes; only histograms are fed as
requests run.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from paceline.core import FinishReason, OutputDelta
from paceline.engine.config import EngineStats
from paceline.server.tally import ANSWERED, quantile_of

Values = dict[tuple[str, ...], float]  # by their labels beside the model's name
Family = GaugeMetricFamily | CounterMetricFamily
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL = "model_name"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = tuple(2**power for power in range(0, 18))
# name, help, and the attribute of EngineStats; `paceline:` where vLLM has no such metric
GAUGES = (
    ("vllm:num_requests_running", "Requests in the batch.", "running"),
    ("vllm:num_requests_waiting", "Requests in the queue.", "waiting"),
    (
        "paceline:num_requests_in_prompt",
        "Requests in the batch whose prompt is not computed yet.",
        "prompting",
    ),
    ("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", "kv_usage"),
    (
        "paceline:speedup_vs_ar",
        "Time the last minute's tokens would have taken without speculation / time they took.",
        "speedup_vs_ar",
    ),
)
COUNTERS = (
    ("vllm:prompt_tokens", "Prompt tokens of admitted requests.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens committed.", "generation_tokens"),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up.", "prefix_queries"),
    ("vllm:prefix_cache_hits", "Prompt tokens found cached.", "prefix_hits"),
    ("vllm:num_preemptions", "Requests preempted for memory.", "preemptions"),
    ("paceline:failed_steps", "Steps that failed and ended their requests.", "failed_steps"),
    (
        "paceline:drafter_failures",
        "Errors of drafters; their requests went on without drafts.",
        "drafter_failures",
    ),
    (
        "paceline:decode_seconds",
        "Seconds of steps in which a request decoded, drafting included.",
        "decode_seconds",
    ),
    (
        "paceline:ar_decode_seconds",
        "Seconds that the tokens of these steps would have taken without speculation, by the "
        "cost table.",
        "ar_seconds",
    ),
)
SPECULATION = (  # of EngineStats.speculation
    ("vllm:spec_decode_num_drafts", "Rounds with a draft.", "draft_rounds"),
    ("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", "draft_tokens"),
    (
        "vllm:spec_decode_num_accepted_tokens",
        "Draft tokens accepted, bonus tokens not counted.",
        "accepted_tokens",
    ),
    ("paceline:forced_tokens", "Tokens that a grammar left no choice about.", "forced_tokens"),
)
HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", SECONDS),
    "request_time_per_output_token_seconds": ("Mean TPOT of a request.", SECONDS),
    "e2e_request_latency_seconds": ("From arrival to the last token.", SECONDS),
    "request_queue_time_seconds": ("From arrival to the first step.", SECONDS),
    "request_prompt_tokens": ("Prompt tokens of a finished stream.", TOKENS),
    "request_generation_tokens": ("Tokens of a finished stream.", TOKENS),
}
GAPS = ("vllm:inter_token_latency_seconds", "Between two rounds of a stream that gave tokens.")
GROUPS = {False: "speculation", True: "holdback"}
REMEMBERED = 1000  # streams of each group whose TPOT the quantiles are taken over
QUANTILES = (0.5, 0.99)
# vLLM's older name for inter_token_latency_seconds, which many dashboards still read
FORMER_NAME = (b"vllm:inter_token_latency_seconds", b"vllm:time_per_output_token_seconds")


class GapCounts:
    """A histogram that any thread may add to: prometheus_client's takes several times as long,
    which is as long as the rest of a token."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)  # of gaps up to each bound, and of longer ones
        self._seconds = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(SECONDS, seconds)] += 1
            self._seconds += seconds

    def metric(self, model_name: str) -> Metric:
        with self._lock:
            sums, seconds = list(accumulate(self._counts)), self._seconds
        names = map(floatToGoString, (*SECONDS, math.inf))
        family = HistogramMetricFamily(*GAPS, labels=[LABEL])
        family.add_metric([model_name], list(zip(names, sums, strict=True)), seconds)
        return family


class ServerMetrics(Collector):
    """One server's metrics. `stats` gives the engine's counters whenever it is called, and each of
    `sources` further metrics."""

    def __init__(
        self,
        model_name: str,
        stats: Callable[[], EngineStats],
        sources: Sequence[Callable[[], Iterable[Metric]]] = (),
    ) -> None:
        self._model_name, self._stats, self._sources = model_name, stats, sources
        self._registry = CollectorRegistry()
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, [LABEL], registry=self._registry, buckets=buckets
            ).labels(model_name)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._gaps = GapCounts()
        # of requests that did not set `speculative`: with it, and held back from it
        self._tpots = {group: deque[float](maxlen=REMEMBERED) for group in GROUPS.values()}
        self._registry.register(self)

    def render(self) -> bytes:
        """Return the text that a Prometheus server scrapes."""
        text = generate_latest(self._registry)
        now, former = FORMER_NAME
        block = [line for line in text.splitlines(keepends=True) if now in line]
        return text + b"".join(block).replace(now, former)

    def between_tokens(self, seconds: float) -> None:
        """Count a gap, from any thread."""
        self._gaps.add(seconds)

    def finished(self, delta: OutputDelta) -> None:
        """Take the last delta of a stream. Those that were cut short would spoil the latencies."""
        times = delta.metrics
        if times is None or delta.finish_reason not in ANSWERED:
            return
        seen: dict[str, float | None] = {
            "time_to_first_token_seconds": times.ttft,
            "request_time_per_output_token_seconds": times.tpot,
            "e2e_request_latency_seconds": times.total,
            "request_queue_time_seconds": times.queue,
            "request_prompt_tokens": delta.prompt_tokens,
            "request_generation_tokens": delta.completion_tokens,
        }
        for name, value in seen.items():
            if value is not None:
                self._histograms[name].observe(value)
        if times.held_back is not None and times.tpot is not None:
            self._tpots[GROUPS[times.held_back]].append(times.tpot)

    # -- what prometheus_client calls -------------------------------------------------------------

    def describe(self) -> list[Metric]:
        return []  # the names depend on nothing; asking for them must not ask the engine

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, field in GAUGES:
            yield self._gauge(name, text, {(): getattr(stats, field)})
        for table, source in ((COUNTERS, stats), (SPECULATION, stats.speculation)):
            for name, text, field in table:
                yield self._counter(name, text, {(): getattr(source, field)})
        finished: Values = {
            (reason.value,): stats.requests_finished.get(reason.value, 0) for reason in FinishReason
        }
        text = "By finished_reason."
        yield self._counter("vllm:request_success", text, finished, "finished_reason")
        positions = stats.speculation.by_position()
        for place, name in enumerate(("draft", "accepted")):
            name = f"vllm:spec_decode_num_{name}_tokens_per_pos"
            counts: Values = {(str(at),): pair[place] for at, pair in enumerate(positions)}
            yield self._counter(name, "By position.", counts, "position")
        yield self._gaps.metric(self._model_name)
        yield from self._holdback()
        for source in self._sources:
            yield from source()

    def _holdback(self) -> Iterator[Metric]:
        tpots: Values = {
            (group, f"{share:g}"): quantile_of(sorted(values), share)
            for group, values in self._tpots.items()
            for share in QUANTILES
            if values
        }
        text = "TPOT of the latest streams by group, of those that the holdback is drawn from."
        yield self._gauge("paceline:tpot_seconds", text, tpots, "group", "quantile")
        speedups: Values = {
            (share,): tpots["holdback", share] / tpot
            for (group, share), tpot in tpots.items()
            if group == "speculation" and self._tpots["holdback"]
        }
        text = "TPOT of streams that were held back / of those that were not, by quantile."
        yield self._gauge("paceline:holdback_speedup", text, speedups, "quantile")

    def _gauge(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return self._filled(GaugeMetricFamily(name, text, labels=[LABEL, *labels]), values)

    def _counter(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return self._filled(CounterMetricFamily(name, text, labels=[LABEL, *labels]), values)

    def _filled(self, family: Family, values: Values) -> Metric:
        for key, value in values.items():
            family.add_metric([self._model_name, *key], value)
        return family
