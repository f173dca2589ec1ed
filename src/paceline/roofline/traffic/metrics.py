"""Traffic of a running server, from its Prometheus metrics: ours, or vLLM's under the same names.

Sizes and times are those of all requests since it started; how many run at once is watched for a
few seconds. Percentiles are read off histograms, between the edges of their buckets.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from paceline.core import InvalidRequest
from paceline.core.errors import check_number
from paceline.roofline.traffic.worth import SHARES, Spread, TrafficProfile

PROMPT, OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
LATENCY, TTFT = "vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds"
TPOT, QUEUE = "vllm:request_time_per_output_token_seconds", "vllm:request_queue_time_seconds"
RUNNING = "vllm:num_requests_running"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
NEEDED = (PROMPT, OUTPUT, LATENCY, TTFT)
LONGEST_WATCH = 3600.0
PATIENCE = 10.0  # seconds for one scrape
Fetch = Callable[[str], str]


@dataclass(slots=True)
class Histogram:
    """A Prometheus histogram. `buckets` maps upper edges to the number of values up to them."""

    count: float = 0.0
    total: float = 0.0
    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Interpolate between the edges of a bucket; the last finite edge stands for values beyond
        it."""
        rank, below, before = share * self.count, 0.0, 0.0
        for edge, seen in sorted(self.buckets.items()):
            if seen >= rank and seen > before:
                if math.isinf(edge):
                    return below
                return below + (edge - below) * (rank - before) / (seen - before)
            below, before = (below if math.isinf(edge) else edge), seen
        return below

    def spread(self) -> Spread:
        return Spread(self.mean, *(self.quantile(share / 100) for share in SHARES))


@dataclass(frozen=True, slots=True)
class Scrape:
    values: Mapping[str, float]
    histograms: Mapping[str, Histogram]

    def histogram(self, name: str) -> Histogram:
        return self.histograms.get(name, Histogram())


def parse_metrics(text: str) -> Scrape:
    """Read Prometheus text, summed over labels: several models or engines of one server count
    together. Raises ValueError for other text."""
    values: dict[str, float] = defaultdict(float)
    histograms: dict[str, Histogram] = defaultdict(Histogram)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, _, part = sample.name.rpartition("_")
            if part == "bucket" and "le" in sample.labels:
                histograms[name].buckets[float(sample.labels["le"])] += sample.value
            elif part == "sum":
                histograms[name].total += sample.value
            elif part == "count":
                histograms[name].count += sample.value
            else:
                values[sample.name] += sample.value
    return Scrape(values, histograms)


def by_label(text: str, name: str, label: str) -> dict[str, float]:
    """Return the values of one metric by a label, summed over the others; "" where a sample lacks
    the label. Raises ValueError for other text."""
    values: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                values[sample.labels.get(label, "")] += sample.value
    return values


def watch(url: str, seconds: float, fetch: Fetch | None = None) -> TrafficProfile:
    """Scrape a server once a second for so long. Raises InvalidRequest where that fails."""
    check_number("traffic_seconds", seconds, 0, LONGEST_WATCH, "seconds, up to an hour")
    address = url if url.rstrip("/").endswith("/metrics") else url.rstrip("/") + "/metrics"
    started = time.monotonic()
    scrapes = [_scrape(address, fetch or _fetch)]
    _check(address, scrapes[0])
    while (left := seconds - (time.monotonic() - started)) > 0:
        time.sleep(min(1.0, left))
        scrapes.append(_scrape(address, fetch or _fetch))
    return traffic_of(scrapes, time.monotonic() - started, address)


def traffic_of(scrapes: Sequence[Scrape], seconds: float, source: str) -> TrafficProfile:
    """Characterise a server from scrapes over that many seconds."""
    first, last = scrapes[0], scrapes[-1]
    ended, before = last.histogram(LATENCY), first.histogram(LATENCY)
    latency, ttft = ended.mean, last.histogram(TTFT).mean
    running = [scrape.values.get(RUNNING, 0.0) for scrape in scrapes]
    busy = [count for count in running if count]
    concurrency = sum(running) / len(running)
    if seconds and ended.count > before.count:
        concurrency = (ended.total - before.total) / seconds
    idle = f"nobody was served in the {seconds:.0f} s that it was watched: batch 1"
    share = max(0.0, 1 - ttft / latency) if latency else None
    served = latency - last.histogram(QUEUE).mean
    decoding = sum(busy) / len(busy) * max(0.0, latency - ttft) / served if busy else 1.0
    drafts = last.values.get(DRAFTS, 0.0)
    prompt, output = last.histogram(PROMPT), last.histogram(OUTPUT)
    return TrafficProfile(
        source=source,
        requests=int(output.count),
        prompt_tokens=prompt.spread(),
        output_tokens=output.spread(),
        latency=latency,
        ttft=ttft,
        tpot=last.histogram(TPOT).mean or None,
        decode_share=share,
        concurrency=concurrency,
        decoding=min(decoding, max(busy, default=1.0)),
        context=prompt.mean + output.mean / 2,
        acceptance_length=1 + last.values.get(ACCEPTED, 0.0) / drafts if drafts else None,
        notes=() if busy else (idle,),
    )


def _check(address: str, scrape: Scrape) -> None:
    missing = [name for name in NEEDED if name not in scrape.histograms]
    if missing:
        expected = "a server with the metrics " + ", ".join(missing)
        raise InvalidRequest("traffic", address, expected)
    if not scrape.histogram(OUTPUT).count:
        raise InvalidRequest("traffic", address, "a server that has finished a request")


def _scrape(address: str, fetch: Fetch) -> Scrape:
    try:
        return parse_metrics(fetch(address))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise InvalidRequest("traffic", address, f"metrics that answer ({error})") from error


def _fetch(address: str) -> str:
    answer = httpx.get(address, timeout=PATIENCE, follow_redirects=True)
    return answer.raise_for_status().text
