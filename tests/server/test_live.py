"""GET /ui/live: what it says is what happened, and it is kept for minutes and no longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.core import FinishReason, OutputDelta, RequestMetrics, Round, SpeculationStats
from paceline.core.cohorts import Cohort
from paceline.engine.config import EngineStats
from paceline.server import live as live_module
from paceline.server import tally
from paceline.server.live import Live, holdback
from paceline.server.settings import ServerSettings
from paceline.server.tally import StreamGroup, Times, Traffic

from .conftest import Client, eventually, listening
from .fake import FakeAsyncEngine
from .test_real_engine import PROMPT, TEXT, tiny_engine

LONG = {**TEXT, "prompt": PROMPT, "temperature": 0}


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with listening(tiny_engine(), served_model_names=("app-a", "app-b")) as running:
        for cohort, wish in (("app-a", "ngram"), ("app-b", "suffix"), ("app-b", None)):
            speculative = {"drafter": wish, "policy": "fixed"} if wish else "off"
            body = {**LONG, "model": cohort, "speculative": speculative, "n": 2}
            answer = httpx.post(running.url + "/v1/completions", json=body, trust_env=False)
            assert answer.status_code == 200, answer.text
        yield running.url


def told(base: str, **query: Any) -> dict[str, Any]:
    answer = httpx.get(base + "/ui/live", params=query, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def scraped(base: str) -> dict[str, float]:
    text = httpx.get(base + "/metrics", trust_env=False).text
    return {
        sample.name + sample.labels.get("position", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_numbers_are_those_of_metrics(base: str) -> None:
    shown, metrics = told(base), scraped(base)
    counts = shown["speculation"]
    assert shown["generation_tokens"] == metrics["vllm:generation_tokens_total"] == 240
    assert counts["draft_rounds"] == metrics["vllm:spec_decode_num_drafts_total"] > 0
    assert counts["draft_tokens"] == metrics["vllm:spec_decode_num_draft_tokens_total"]
    accepted = metrics["vllm:spec_decode_num_accepted_tokens_total"]
    assert counts["accepted_tokens"] == accepted
    assert counts["acceptance_length"] == pytest.approx(1 + accepted / counts["draft_rounds"])
    for place, position in enumerate(counts["positions"]):
        drafted = metrics[f"vllm:spec_decode_num_draft_tokens_per_pos_total{place}"]
        stood = metrics.get(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{place}", 0)
        assert (position["drafted"], position["accepted"]) == (drafted, stood)
    assert shown["latency"]["streams"] == metrics["vllm:e2e_request_latency_seconds_count"] == 6
    assert shown["now"] == {
        "running": 0,
        "waiting": 0,
        "kv_usage": metrics["vllm:kv_cache_usage_perc"],
    }
    speedup = metrics["paceline:ar_decode_seconds_total"] / metrics["paceline:decode_seconds_total"]
    assert shown["speedup_vs_ar"] == pytest.approx(speedup)


def test_groups_add_up_and_ar_has_no_speedup(base: str) -> None:
    shown = told(base)
    groups = {(one["drafter"], Cohort.parse(one["cohort"]).model): one for one in shown["groups"]}
    assert list(groups) == [("ngram", "app-a"), ("suffix", "app-b"), (None, "app-b")]
    for name in ("rounds", "draft_rounds", "draft_tokens", "accepted_tokens"):
        assert (
            sum(one["speculation"][name] for one in groups.values()) == shown["speculation"][name]
        )
    plain = groups[None, "app-b"]
    assert plain["tokens"] == plain["speculation"]["rounds"] == 80
    assert plain["speedup_vs_ar"] is None and plain["speculation"]["acceptance_length"] is None
    assert groups["ngram", "app-a"]["speedup_vs_ar"] > 0
    for one in groups.values():
        tpot = one["latency"]["tpot"]
        assert 0 < tpot["p50"] <= tpot["p90"] <= tpot["p99"]
        rounds, drafted = one["speculation"], one["speculation"]["rounds_by_draft_length"]
        assert sum(drafted) == rounds["rounds"]
        assert sum(drafted[1:]) == rounds["draft_rounds"]


def test_samples_are_taken_while_nobody_looks(base: str) -> None:
    eventually(lambda: len(told(base)["history"]) >= 2)
    points = told(base)["history"]
    assert points[-1]["time"] - points[-2]["time"] == pytest.approx(live_module.EVERY, abs=0.5)
    assert told(base, since=points[-2]["time"])["history"][0] == points[-1]


def tokens_so_far(count: int) -> EngineStats:
    return EngineStats(speculation=SpeculationStats(tokens=count))


def test_nothing_measured_is_no_number() -> None:
    shown = Live(EngineStats, Traffic()).snapshot()
    assert shown["speedup_vs_ar"] is None and shown["prefix_hit_rate"] is None
    assert shown["speculation"]["acceptance_length"] is None
    assert shown["latency"]["tpot"] is None and shown["holdback"] is None
    assert shown["groups"] == [] and shown["history"] == []


def test_the_history_is_bounded_and_windows_look_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "time", lambda: clock[0] + 5e5)
    tokens = [0]
    live = Live(lambda: tokens_so_far(tokens[0]), Traffic())
    for _ in range(2000):
        clock[0] += 1
        tokens[0] += 10 if clock[0] <= 2900 else 30
        live.sample()
    shown = live.snapshot(window=60)
    assert shown["window"] == 60 and shown["tokens_per_second"] == 30
    assert live.snapshot(window=200)["tokens_per_second"] == 20
    assert len(shown["history"]) == live_module.KEPT
    assert shown["history"][-1]["tokens_per_second"] == 30
    assert shown["history"][0]["tokens_per_second"] == 10
    fresh = live.snapshot(since=clock[0] + 5e5 - 3)["history"]
    assert fresh == shown["history"][-3:]


def test_a_delta_counts_its_round_and_the_last_one_its_times() -> None:
    traffic = Traffic()
    request: Any = type("R", (), {"drafter": "auto", "cohort": "m", "drafter_version": "1"})()
    first, second = Round(0, 0, 0), Round(1, 4, 2, forced=3, part="suffix")
    traffic.note(StreamGroup.of(request), OutputDelta(request_id="r", choice=0, round=first))
    traffic.note(StreamGroup.of(request), OutputDelta(request_id="r", choice=0, round=second))
    before = traffic.sampled()[0]
    times = RequestMetrics(queue=0.1, ttft=0.2, tpot=0.03, total=1.0)
    last = OutputDelta(
        request_id="r",
        choice=0,
        round=Round(7, 0, 0),
        finish_reason=FinishReason.STOP,
        metrics=times,
    )
    traffic.note(StreamGroup.of(request), last)
    group = StreamGroup("auto", "m", "1")
    stats = before[group]
    assert stats.rounds_by_draft_length == [1, 0, 0, 0, 1] and stats.rounds_by_accepted == [0, 0, 1]
    assert stats.parts["suffix"].rounds_by_accepted == [0, 0, 1]
    assert (stats.tokens, stats.forced_tokens) == (7, 3)
    assert stats.by_position() == [(1, 1), (1, 1), (1, 0), (1, 0)]
    assert traffic.by_group[group].speculation.rounds == 3, "a copy stays as it was"
    ended = traffic.by_series()[group.series]
    assert (ended.answered, ended.failed, ended.timed) == (1, 0, 1)
    assert (ended.ttft_seconds, ended.tpot_seconds) == (0.2, 0.03)


def test_groups_are_bounded_and_their_sum_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_GROUPS", 3)
    traffic = Traffic()
    delta = OutputDelta(request_id="r", choice=0, round=Round(0, 4, 2))
    for index in range(10):
        traffic.note(StreamGroup("auto", f"m{index}"), delta)
    groups, whole = traffic.sampled()
    assert [group.cohort for group in groups] == ["m7", "m8", "m9"]
    assert whole.rounds == 10 and whole.accepted_tokens == 20


def test_the_latest_times_are_kept() -> None:
    traffic = Traffic()
    times = RequestMetrics(queue=0.1, ttft=0.2, tpot=0.03, total=1.0)
    last = OutputDelta(
        request_id="r", choice=0, finish_reason=FinishReason.STOP, metrics=times, round=None
    )
    traffic.note(StreamGroup("auto", "m"), last)
    assert [stream.metrics.tpot for stream in traffic.times] == [0.03]


def test_holdback_is_measured_or_not_said() -> None:
    def ended(tpot: float, held: bool | None) -> Times:
        metrics = RequestMetrics(0.0, 0.1, tpot, 1.0, held)
        return Times(0.0, StreamGroup(None, "m"), metrics)

    assert holdback([ended(0.1, False), ended(0.2, None)]) is None
    both = [ended(0.1, False), ended(0.3, True), ended(9.0, None)]
    assert holdback(both) == {"speedup": pytest.approx(3), "held_back": 1, "others": 1}


@pytest.mark.parametrize(
    ("query", "field"),
    [("window=1", "window"), ("window=nan", "window"), ("since=x", "since"), ("span=5", "span")],
)
def test_a_bad_query_is_refused_by_name(client: Client, query: str, field: str) -> None:
    answer = client.get(f"/ui/live?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


def test_what_is_served(client: Client) -> None:
    facts = client.get("/ui/serving").json()
    assert facts["models"] == ["fake-model"] and facts["default_drafter"] == "ngram"
    assert facts["drafters"] == [{"name": "ngram", "version": "1", "max_draft_len": 4}]


@pytest.mark.parametrize("path", ["/ui/live", "/ui/serving"])
def test_a_key_is_needed_where_the_server_has_one(path: str) -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(api_keys=("secret",)))
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
