"""Prometheus metrics by cohort and drafter, and of the capture of traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from paceline.core.cohorts import Cohort
from paceline.dataset.traces.writer import TraceCounts
from paceline.server.tally import Traffic

AR = "ar"  # the label of a stream without a drafter
LABELS = ("model_name", "app", "language", "region", "drafter")
# name, help, and the attribute of GroupCounts; the sums of seconds are for ratios of rates
COUNTERS = (
    ("requests", "Streams that ended by themselves.", "answered"),
    ("failures", "Streams that ended by an error.", "failed"),
    ("tokens", "Tokens committed.", "speculation.tokens"),
    ("rounds", "Rounds, with a draft or without.", "speculation.rounds"),
    ("draft_rounds", "Rounds with a draft.", "speculation.draft_rounds"),
    ("draft_tokens", "Tokens drafted.", "speculation.draft_tokens"),
    ("accepted_tokens", "Draft tokens accepted.", "speculation.accepted_tokens"),
    ("step_seconds", "Seconds of the rounds' steps, drafting included.", "speculation.seconds"),
    ("ar_step_seconds", "The same without drafts, by the cost table.", "speculation.ar_seconds"),
    ("begun", "Streams of at least one token, which have a TTFT.", "begun"),
    ("ttft_seconds", "Sum of the TTFT of begun streams.", "ttft_seconds"),
    ("timed", "Streams of at least two tokens, which have a TPOT.", "timed"),
    ("tpot_seconds", "Sum of the TPOT of timed streams.", "tpot_seconds"),
)
CAPTURE = (
    ("written", "Requests whose traces were written."),
    ("dropped", "Requests whose traces were left out, for want of room or of a disk."),
    ("failed", "Requests whose traces could not be made."),
)
Source = Callable[[], Iterator[Metric]]


def cohort_metrics(traffic: Traffic) -> Source:
    """Return what yields the counters of each cohort and drafter."""

    def metrics() -> Iterator[Metric]:
        series = traffic.by_series()
        rows = [(_labels(group.cohort, group.drafter), counts) for group, counts in series.items()]
        for name, text, field in COUNTERS:
            family = CounterMetricFamily(f"paceline:cohort_{name}", text, labels=LABELS)
            value: Callable[[Any], float] = attrgetter(field)
            for labels, counts in rows:
                family.add_metric(labels, value(counts))
            yield family

    return metrics


def capture_metrics(model_name: str, counts: Callable[[], TraceCounts]) -> Source:
    """Return what yields the counters of a server that writes traces."""

    def metrics() -> Iterator[Metric]:
        now = counts()
        for name, text in CAPTURE:
            counter = CounterMetricFamily(f"paceline:traces_{name}", text, labels=LABELS[:1])
            counter.add_metric([model_name], getattr(now, name))
            yield counter
        text = "Whether traces are written: 0 while their folder cannot be written."
        gauge = GaugeMetricFamily("paceline:traces_capturing", text, labels=LABELS[:1])
        gauge.add_metric([model_name], float(now.capturing))
        yield gauge

    return metrics


def _labels(label: str, drafter: str | None) -> list[str]:
    cohort = Cohort.parse(label)
    return [cohort.model, cohort.app, cohort.language, cohort.region, drafter or AR]
