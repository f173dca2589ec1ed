"""What an engine's /metrics say, under one set of names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from paceline.core.rounds import acceptance_length
from paceline.roofline.traffic.metrics import Histogram, by_label, parse_metrics

COUNTERS = (
    "prompt_tokens",
    "generated_tokens",
    "requests_finished",
    "prefix_queries",
    "prefix_hits",
    "drafts",
    "drafted",
    "accepted",
)


@dataclass(frozen=True, slots=True)
class TimeSpread:
    """The mean and two percentiles of a time, in seconds."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Gauges of now and counters since the engine's start; None where it does not tell.

    `accepted_by_position[k]` counts rounds that accepted draft token k + 1. Shares are 0 to 1.
    """

    running: int
    waiting: int
    kv_usage: float | None = None
    ttft: TimeSpread | None = None
    tpot: TimeSpread | None = None
    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests_finished: int = 0
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] = field(default=())

    @property
    def acceptance_length(self) -> float | None:
        """AL of all rounds that drafted, incl. bonus."""
        if self.accepted is None or self.drafts is None:
            return None
        return acceptance_length(self.accepted, self.drafts)

    @property
    def prefix_hit_share(self) -> float | None:
        if not self.prefix_queries or self.prefix_hits is None:
            return None
        return self.prefix_hits / self.prefix_queries

    def since(self, before: EngineMetrics) -> EngineMetrics:
        """Return the counters of the time since `before`; gauges and spreads stay today's.

        A counter that fell belongs to an engine that was restarted: it then counts from zero.
        """
        now = {name: getattr(self, name) for name in COUNTERS}
        old = {name: getattr(before, name) or 0 for name in COUNTERS}
        if any(value is not None and value < old[name] for name, value in now.items()):
            return self
        gained: dict[str, Any] = {
            name: None if value is None else value - old[name] for name, value in now.items()
        }
        positions = zip_longest(self.accepted_by_position, before.accepted_by_position, fillvalue=0)
        by_position = tuple(count - earlier for count, earlier in positions)
        return replace(self, accepted_by_position=by_position, **gained)


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of one engine's metrics, "" for what it does not count. `own` is one that no other
    engine has."""

    own: str
    running: str
    waiting: str
    kv_usage: str
    ttft: str
    tpot: str
    prompt_tokens: str
    generated_tokens: str
    finished: str
    prefix_queries: str
    prefix_hits: str
    drafts: str
    drafted: str = ""
    accepted: str = ""
    by_position: str = ""
    replicas: str = "engine"  # the label that tells data-parallel engines of one server apart


VLLM_NAMES = MetricNames(
    own="vllm:num_requests_running",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv_usage="vllm:kv_cache_usage_perc",
    ttft="vllm:time_to_first_token_seconds",
    tpot="vllm:request_time_per_output_token_seconds",
    prompt_tokens="vllm:prompt_tokens_total",
    generated_tokens="vllm:generation_tokens_total",
    finished="vllm:request_success_total",
    prefix_queries="vllm:prefix_cache_queries_total",
    prefix_hits="vllm:prefix_cache_hits_total",
    drafts="vllm:spec_decode_num_drafts_total",
    drafted="vllm:spec_decode_num_draft_tokens_total",
    accepted="vllm:spec_decode_num_accepted_tokens_total",
    by_position="vllm:spec_decode_num_accepted_tokens_per_pos_total",
)


def read_prometheus(text: str, names: MetricNames) -> EngineMetrics:
    """Read an engine's /metrics. Replicas of one server count together; of their KV caches it is
    the mean that counts. Raises ValueError for text without this engine's metrics."""
    scrape = parse_metrics(text)
    if names.own not in scrape.values:
        raise ValueError(f"no metric {names.own}: another engine's metrics")
    usages = by_label(text, names.kv_usage, names.replicas)
    positions = by_label(text, names.by_position, "position")

    def count(name: str) -> int | None:
        value = scrape.values.get(name)
        return None if value is None else int(value)

    return EngineMetrics(
        running=count(names.running) or 0,
        waiting=count(names.waiting) or 0,
        kv_usage=sum(usages.values()) / len(usages) if usages else None,
        ttft=_spread(scrape.histogram(names.ttft)),
        tpot=_spread(scrape.histogram(names.tpot)),
        prompt_tokens=count(names.prompt_tokens) or 0,
        generated_tokens=count(names.generated_tokens) or 0,
        requests_finished=count(names.finished) or 0,
        prefix_queries=count(names.prefix_queries),
        prefix_hits=count(names.prefix_hits),
        drafts=count(names.drafts),
        drafted=count(names.drafted),
        accepted=count(names.accepted),
        accepted_by_position=tuple(int(positions[key]) for key in sorted(positions, key=int)),
    )


def _spread(times: Histogram) -> TimeSpread | None:
    if not times.count:
        return None
    return TimeSpread(times.mean, times.quantile(0.5), times.quantile(0.99))
