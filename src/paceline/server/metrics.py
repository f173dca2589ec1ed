"""Prometheus metrics under the names that vLLM's dashboards read.

Gauges and counters are read from the engine when somebody scrapes; only histograms are fed as
requests run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.core import FinishReason, OutputDelta
from paceline.engine.config import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL = "model_name"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = tuple(2**power for power in range(0, 18))

GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "num_requests_running": ("Requests in the batch.", lambda s: s.running),
    "num_requests_waiting": ("Requests in the queue.", lambda s: s.waiting),
    "kv_cache_usage_perc": ("Share of KV blocks in use; 1 is all.", lambda s: s.kv_usage),
}
COUNTERS: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "prompt_tokens": ("Prompt tokens of admitted requests.", lambda s: s.prompt_tokens),
    "generation_tokens": ("Tokens committed.", lambda s: s.generation_tokens),
    "prefix_cache_queries": ("Prompt tokens looked up.", lambda s: s.prefix_queries),
    "prefix_cache_hits": ("Prompt tokens found cached.", lambda s: s.prefix_hits),
    "num_preemptions": ("Requests preempted for memory.", lambda s: s.preemptions),
    "spec_decode_num_drafts": ("Rounds with a draft.", lambda s: s.speculation.draft_rounds),
    "spec_decode_num_draft_tokens": ("Tokens drafted.", lambda s: s.speculation.draft_tokens),
    "spec_decode_num_accepted_tokens": (
        "Draft tokens accepted, bonus tokens not counted.",
        lambda s: s.speculation.accepted_tokens,
    ),
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", SECONDS),
    "request_time_per_output_token_seconds": ("Mean TPOT of a request.", SECONDS),
    "inter_token_latency_seconds": ("Between two rounds of a stream that gave tokens.", SECONDS),
    "e2e_request_latency_seconds": ("From arrival to the last token.", SECONDS),
    "request_queue_time_seconds": ("From arrival to the first step.", SECONDS),
    "request_prompt_tokens": ("Prompt tokens of a finished stream.", TOKENS),
    "request_generation_tokens": ("Tokens of a finished stream.", TOKENS),
}
# What vLLM has no name for
OWN_GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "speedup_vs_ar": (
        "Time the last minute's tokens would have taken without speculation / time they took.",
        lambda s: s.speedup_vs_ar,
    ),
}
OWN_COUNTERS: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "failed_steps": ("Steps that failed and ended their requests.", lambda s: s.failed_steps),
    "drafter_failures": (
        "Errors of drafters; their requests went on without drafts.",
        lambda s: s.drafter_failures,
    ),
    "forced_tokens": (
        "Tokens that a grammar left no choice about.",
        lambda s: s.speculation.forced_tokens,
    ),
    "decode_seconds": (
        "Steps in which somebody decoded, with drafting.",
        lambda s: s.decode_seconds,
    ),
    "ar_decode_seconds": (
        "What their tokens would have taken without speculation, by the cost table.",
        lambda s: s.ar_seconds,
    ),
}
GROUPS = {False: "speculation", True: "holdback"}
REMEMBERED = 1000  # streams of each group whose TPOT the quantiles are taken over
QUANTILES = (0.5, 0.99)
# vLLM's older name for inter_token_latency_seconds, which many dashboards still read
FORMER_NAME = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")


class ServerMetrics:
    """One server's metrics. `stats` gives the engine's counters whenever it is called."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, [LABEL], registry=self._registry, buckets=buckets
            ).labels(model_name)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._tpots = {group: deque[float](maxlen=REMEMBERED) for group in GROUPS.values()}
        self._registry.register(_EngineCollector(model_name, stats))
        self._registry.register(_HoldbackCollector(model_name, self._tpots))

    def render(self) -> bytes:
        """The text that a Prometheus server scrapes."""
        text = generate_latest(self._registry)
        now, former = FORMER_NAME
        block = [line for line in text.splitlines(keepends=True) if now.encode() in line]
        return text + b"".join(block).replace(now.encode(), former.encode())

    def between_tokens(self, seconds: float) -> None:
        self._histograms["inter_token_latency_seconds"].observe(seconds)

    def finished(self, delta: OutputDelta) -> None:
        """Takes the last delta of a stream. Those that were cut short would spoil the latencies."""
        times = delta.metrics
        if times is None or delta.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
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


class _EngineCollector(Collector):
    def __init__(self, model_name: str, stats: Callable[[], EngineStats]) -> None:
        self._model_name, self._stats = model_name, stats

    def describe(self) -> list[Metric]:
        return []  # the names depend on nothing; asking for them must not ask the engine

    def collect(self) -> Iterator[Metric]:
        stats, label = self._stats(), [self._model_name]
        for prefix, gauges in (("vllm", GAUGES), ("paceline", OWN_GAUGES)):
            for name, (text, value) in gauges.items():
                gauge = GaugeMetricFamily(f"{prefix}:{name}", text, labels=[LABEL])
                gauge.add_metric(label, value(stats))
                yield gauge
        for prefix, counters in (("vllm", COUNTERS), ("paceline", OWN_COUNTERS)):
            for name, (text, value) in counters.items():
                counter = CounterMetricFamily(f"{prefix}:{name}", text, labels=[LABEL])
                counter.add_metric(label, value(stats))
                yield counter
        yield self._by("request_success", "finished_reason", self._finished(stats))
        positions = stats.speculation.by_position()
        for place, name in enumerate(("draft", "accepted")):
            by_position = {str(position): pair[place] for position, pair in enumerate(positions)}
            yield self._by(f"spec_decode_num_{name}_tokens_per_pos", "position", by_position)

    def _by(self, name: str, label: str, values: dict[str, int]) -> Metric:
        counter = CounterMetricFamily(f"vllm:{name}", f"By {label}.", labels=[LABEL, label])
        for key, value in values.items():
            counter.add_metric([self._model_name, key], value)
        return counter

    def _finished(self, stats: EngineStats) -> dict[str, int]:
        return {
            reason.value: stats.requests_finished.get(reason.value, 0) for reason in FinishReason
        }


class _HoldbackCollector(Collector):
    """TPOT of requests that had no wish about speculation: with it, and held back from it."""

    def __init__(self, model_name: str, tpots: dict[str, deque[float]]) -> None:
        self._model_name, self._tpots = model_name, tpots

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        streams = {group: sorted(tpots) for group, tpots in self._tpots.items() if tpots}
        tpot = GaugeMetricFamily(
            "paceline:tpot_seconds",
            "TPOT of the latest streams by group, of those that the holdback is drawn from.",
            labels=[LABEL, "group", "quantile"],
        )
        for group, values in streams.items():
            for quantile in QUANTILES:
                tpot.add_metric(
                    [self._model_name, group, f"{quantile:g}"], quantile_of(values, quantile)
                )
        yield tpot
        speedup = GaugeMetricFamily(
            "paceline:holdback_speedup",
            "TPOT of streams that were held back / of those that were not, by quantile.",
            labels=[LABEL, "quantile"],
        )
        if len(streams) == len(GROUPS):
            for quantile in QUANTILES:
                held = quantile_of(streams["holdback"], quantile)
                drafted = quantile_of(streams["speculation"], quantile)
                speedup.add_metric([self._model_name, f"{quantile:g}"], held / drafted)
        yield speedup


def quantile_of(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest of `ordered`, which is not empty."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
