"""Traffic of a running server, from its Prometheus metrics: ours, or vLLM's under the same names.

Sizes and times are those of all requests since it started; how many run at once is watched for a
few seconds. Percentiles are read off histograms, between the edges of their buckets.
"""

from __future__ import annotations

import math
import re
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core import InvalidRequest
from paceline.core.errors import check_number
from paceline.roofline.traffic import SHARES, Spread, Traffic

PROMPT, OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
LATENCY, TTFT = "vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds"
TPOT, QUEUE = "vllm:request_time_per_output_token_seconds", "vllm:request_queue_time_seconds"
RUNNING = "vllm:num_requests_running"
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
NEEDED = (PROMPT, OUTPUT, LATENCY, TTFT)
SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?")
EDGE = re.compile(r'\ble="([^"]+)"')
LONGEST_WATCH = 3600.0
PATIENCE = 10.0  # seconds for one scrape
Fetch = Callable[[str], str]


@dataclass(slots=True)
class Histogram:
    """`buckets` maps upper edges to how many were at most that."""

    count: float = 0.0
    total: float = 0.0
    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Linear between the edges of its bucket; the last finite edge for what lies beyond."""
        wanted, below, before = share * self.count, 0.0, 0.0
        for edge, seen in sorted(self.buckets.items()):
            if seen >= wanted and seen > before:
                if math.isinf(edge):
                    return below
                return below + (edge - below) * (wanted - before) / (seen - before)
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
    """Sums over labels, so that several models or engines of one server count together."""
    values: dict[str, float] = defaultdict(float)
    histograms: dict[str, Histogram] = defaultdict(Histogram)
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        name, labels, number = match[1], match[2] or "", float(match[3])
        base, _, part = name.rpartition("_")
        if part == "bucket" and (edge := EDGE.search(labels)):
            histograms[base].buckets[float(edge[1])] += number
        elif part == "sum":
            histograms[base].total += number
        elif part == "count":
            histograms[base].count += number
        else:
            values[name] += number
    return Scrape(values, histograms)


def watch(url: str, seconds: float, fetch: Fetch | None = None) -> Traffic:
    """Scrapes once a second for so long. Raises InvalidRequest where that cannot be done."""
    check_number("traffic_seconds", seconds, 0, LONGEST_WATCH, "seconds, up to an hour")
    fetch = fetch or _fetch
    address = url if url.rstrip("/").endswith("/metrics") else url.rstrip("/") + "/metrics"
    started = time.monotonic()
    scrapes = [parse_metrics(fetch(address))]
    _check(address, scrapes[0])
    while (left := seconds - (time.monotonic() - started)) > 0:
        time.sleep(min(1.0, left))
        scrapes.append(parse_metrics(fetch(address)))
    return traffic_of(scrapes, time.monotonic() - started, address)


def traffic_of(scrapes: Sequence[Scrape], seconds: float, source: str) -> Traffic:
    """From scrapes over that many seconds."""
    first, last = scrapes[0], scrapes[-1]
    latency, ttft = last.histogram(LATENCY).mean, last.histogram(TTFT).mean
    running = [each.values.get(RUNNING, 0.0) for each in scrapes]
    busy = [count for count in running if count]
    ended = last.histogram(LATENCY).count - first.histogram(LATENCY).count
    spent = last.histogram(LATENCY).total - first.histogram(LATENCY).total
    notes = []
    if not busy:
        notes.append(f"nobody was served in the {seconds:.0f} s that it was watched: batch 1")
    share = max(0.0, 1 - ttft / latency) if latency else None
    served = latency - last.histogram(QUEUE).mean
    decoding = sum(busy) / len(busy) * max(0.0, latency - ttft) / served if busy else 1.0
    drafts = last.values.get(DRAFTS, 0.0)
    prompt, output = last.histogram(PROMPT), last.histogram(OUTPUT)
    return Traffic(
        source=source,
        requests=int(output.count),
        prompt_tokens=prompt.spread(),
        output_tokens=output.spread(),
        latency=latency,
        ttft=ttft,
        tpot=last.histogram(TPOT).mean or None,
        decode_share=share,
        concurrency=spent / seconds if ended and seconds else sum(running) / len(running),
        decoding=min(decoding, max(busy, default=1.0)),
        context=prompt.mean + output.mean / 2,
        acceptance_length=1 + last.values.get(ACCEPTED, 0.0) / drafts if drafts else None,
        notes=tuple(notes),
    )


def _check(address: str, scrape: Scrape) -> None:
    missing = [name for name in NEEDED if name not in scrape.histograms]
    if missing:
        expected = "a server with the metrics " + ", ".join(missing)
        raise InvalidRequest("traffic", address, expected)
    if not scrape.histogram(OUTPUT).count:
        raise InvalidRequest("traffic", address, "a server that has finished a request")


def _fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            text: str = answer.read().decode()
            return text
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise InvalidRequest("traffic", address, f"metrics that answer ({error})") from error
