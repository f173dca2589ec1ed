"""Counts by drafter, version and cohort: each series once, and no counter falls."""

from __future__ import annotations

import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric

from paceline.core import FinishReason, OutputDelta, RequestMetrics, Round
from paceline.engine.config import EngineStats
from paceline.engine.versions import DrafterState, LoadCounts, LoadedDrafter
from paceline.server import tally
from paceline.server.cohort_metrics import cohort_metrics
from paceline.server.drafter_metrics import DrafterMetrics
from paceline.server.live import Live
from paceline.server.tally import StreamGroup, Traffic

COHORT, OTHER = "m|shop|en|eu", "m|shop|de|eu"
OLD, NEW = StreamGroup("tuned", COHORT, "v1"), StreamGroup("tuned", COHORT, "v2")
TIMES = RequestMetrics(queue=0.1, ttft=0.5, tpot=0.03, total=1.0)


def ask(traffic: Traffic, group: StreamGroup, accepted: int = 2) -> None:
    """Note a stream of one round that has ended."""
    round, reason = Round(0, 4, accepted), FinishReason.STOP
    delta = OutputDelta("r", 0, round=round, finish_reason=reason, metrics=TIMES)
    traffic.note(group, delta)


def values(metrics: Collection[Metric], name: str) -> dict[tuple[str, ...], float]:
    """The series of a metric by their labels, each of which is there once."""
    found: dict[tuple[str, ...], float] = {}
    for sample in (sample for metric in metrics for sample in metric.samples):
        if sample.name == f"paceline:{name}":
            labels = tuple(sample.labels.values())
            assert labels not in found, f"{name} has {labels} twice"
            found[labels] = sample.value
    return found


def by_cohort(traffic: Traffic, name: str) -> list[float]:
    return list(values(list(cohort_metrics(traffic)()), f"cohort_{name}_total").values())


def drafter_metrics(traffic: Traffic, *versions: str) -> DrafterMetrics:
    """The metrics of `tuned`, loaded in these versions one after the other."""
    drafters = [LoadedDrafter("tuned", "", DrafterState.LIVE, version) for version in versions]
    loaded: Any = SimpleNamespace(counts=LoadCounts(), list=lambda: drafters[-1:])
    return DrafterMetrics("m", loaded, traffic.by_version)


def test_two_versions_of_a_name_are_one_series() -> None:
    traffic = Traffic()
    ask(traffic, OLD)
    for _ in range(2):
        ask(traffic, NEW)
    assert by_cohort(traffic, "accepted_tokens") == [6]
    assert by_cohort(traffic, "requests") == [3]
    assert by_cohort(traffic, "ttft_seconds") == [1.5]


def test_a_series_does_not_fall_when_an_old_version_is_summed_up() -> None:
    traffic = Traffic()
    ask(traffic, OLD)
    ask(traffic, NEW)
    traffic.sum_up({("tuned", "v2")}, time.monotonic() + 1)
    assert list(traffic.by_group) == [NEW], "the name is loaded again, and its old version is not"
    assert by_cohort(traffic, "requests") == [2]
    assert by_cohort(traffic, "accepted_tokens") == [4]
    assert traffic.sampled()[1].accepted_tokens == 4
    traffic.sum_up((), time.monotonic() + 1)
    assert by_cohort(traffic, "requests") == []
    ask(traffic, NEW)
    assert by_cohort(traffic, "requests") == [1], "a series that had ended begins at nothing"


def test_a_series_does_not_fall_when_an_old_version_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tally, "MOST_GROUPS", 2)
    traffic = Traffic()
    for group in (OLD, NEW, StreamGroup("tuned", OTHER, "v2")):
        ask(traffic, group)
    assert by_cohort(traffic, "requests") == [2, 1]
    monkeypatch.setattr(tally, "MOST_GROUPS", 1)
    traffic = Traffic()
    for group in (OLD, NEW):
        ask(traffic, group)
    assert by_cohort(traffic, "requests") == [2], "the new version takes the old one's place"


def test_the_page_has_one_row_for_a_drafter_and_cohort() -> None:
    traffic = Traffic()
    live = Live(EngineStats, traffic, lambda: {("tuned", "v2")})
    ask(traffic, OLD)
    for _ in range(2):
        ask(traffic, NEW)
    (row,) = live.snapshot()["groups"]
    assert (row["drafter"], row["cohort"]) == ("tuned", COHORT)
    assert row["tokens"] == 9 and row["speculation"]["accepted_tokens"] == 6
    assert row["latency"]["streams"] == 3


def test_requests_of_an_old_version_are_forgotten_with_it() -> None:
    metrics = drafter_metrics(Traffic(), "v1", "v2")
    for version in ("v1", "v2"):
        request: Any = SimpleNamespace(drafter="tuned", drafter_version=version, route="default")
        metrics.note([request])
    told = values(list(metrics.collect()), "drafter_requests_total")
    assert told == {("m", "tuned", "v2", "default"): 1}


def test_the_counters_of_a_drafter_never_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_GROUPS", 3)
    traffic = Traffic()
    metrics = drafter_metrics(traffic, "v2")
    before = 0.0
    for index in range(8):
        ask(traffic, StreamGroup("tuned", f"m{index}", "v2"), accepted=1 + index)
        traffic.sum_up({("tuned", "v2")}, 0.0)
        told = values(list(metrics.collect()), "drafter_accepted_tokens_total")
        assert told["m", "tuned", "v2"] == before + 1 + index
        before = told["m", "tuned", "v2"]
    assert traffic.sampled()[1].accepted_tokens == before


def test_nothing_is_kept_of_drafters_that_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_GROUPS", 3)
    traffic = Traffic()
    for index in range(40):
        for cohort in ("a", "b"):
            ask(traffic, StreamGroup("tuned", cohort, str(index)))
        traffic.sum_up({("tuned", str(index))}, 0.0)
    assert len(traffic.by_version()) <= tally.MOST_GROUPS + 1
    traffic.sum_up((), time.monotonic() + 1)
    assert traffic.by_version() == {} and traffic.by_series() == {}
    assert traffic.sampled()[1].rounds == 80
