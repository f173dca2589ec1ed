"""/metrics speaks the names that dashboards already read."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.core import (
    FinishReason,
    OutputDelta,
    RequestMetrics,
    Round,
    SamplingParams,
    SpeculationStats,
)
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig, EngineStats
from paceline.engine.step_cost import StepCost
from paceline.server.cohort_metrics import LABELS
from paceline.server.metrics import ServerMetrics
from paceline.server.settings import ServerSettings
from tests.engine.tiny import tiny_model

from .conftest import Client
from .fake import FakeAsyncEngine


def samples(client: Client) -> dict[tuple[str, str], float]:
    """Values by name and by whatever label stands beside the model's name."""
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name.startswith("paceline:cohort_"):
                continue
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "fake-model"
            found[sample.name, ",".join(labels.values())] = sample.value
    return found


def test_latencies_are_counted_per_stream(client: Client) -> None:
    client.chat(n=2, max_tokens=8)
    client.chat(stream=True, max_tokens=1)
    client.chat(temperature=-1)
    seen = samples(client)
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert seen[f"vllm:{name}_seconds_count", ""] == 3
    # one token has no time per output token, and nothing between its tokens
    assert seen["vllm:request_time_per_output_token_seconds_count", ""] == 2
    assert seen["vllm:inter_token_latency_seconds_count", ""] == 4
    assert seen["vllm:request_generation_tokens_sum", ""] == 17
    former = {k: v for k, v in seen.items() if k[0].startswith("vllm:time_per_output_token")}
    assert former["vllm:time_per_output_token_seconds_count", ""] == 4


def test_a_stream_without_a_token_has_no_ttft(client: Client) -> None:
    answer = client.complete(max_tokens=0, echo=True, logprobs=1)
    assert answer.status_code == 200, answer.text
    times = answer.json()["metrics"]
    assert times["ttft"] is None and times["tpot"] is None and times["e2e_latency"] > 0
    seen = samples(client)
    assert seen["vllm:time_to_first_token_seconds_count", ""] == 0
    assert seen["vllm:e2e_request_latency_seconds_count", ""] == 1
    latency = client.get("/ui/live").json()["latency"]
    assert latency["streams"] == 1 and latency["ttft"] is None
    cohorts = {
        sample.name: sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith("paceline:cohort_")
    }
    assert cohorts["paceline:cohort_requests_total"] == 1
    assert cohorts["paceline:cohort_begun_total"] == 0
    assert cohorts["paceline:cohort_ttft_seconds_total"] == 0


def test_counters_and_gauges_come_from_the_engine(client: Client) -> None:
    client.engine.counts = {
        "waiting": 3,
        "kv_usage": 0.25,
        "preemptions": 4,
        "prompt_tokens": 100,
        "prefix_queries": 90,
        "prefix_hits": 40,
        "requests_finished": {"stop": 5, "abort": 1},
    }
    # of ten rounds with three draft tokens each two accept none, four one and four two of them
    accepted = [0] * 2 + [1] * 4 + [2] * 4
    client.engine.speculation = SpeculationStats.of(Round(1, 3, count) for count in accepted)
    seen = samples(client)
    expected = {
        ("vllm:num_requests_running", ""): 0,
        ("vllm:num_requests_waiting", ""): 3,
        ("vllm:kv_cache_usage_perc", ""): 0.25,
        ("vllm:prompt_tokens_total", ""): 100,
        ("vllm:generation_tokens_total", ""): 22,
        ("vllm:prefix_cache_queries_total", ""): 90,
        ("vllm:prefix_cache_hits_total", ""): 40,
        ("vllm:num_preemptions_total", ""): 4,
        ("vllm:spec_decode_num_drafts_total", ""): 10,
        ("vllm:spec_decode_num_draft_tokens_total", ""): 30,
        ("vllm:spec_decode_num_accepted_tokens_total", ""): 12,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "0"): 8,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "1"): 4,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "2"): 0,
        ("vllm:spec_decode_num_draft_tokens_per_pos_total", "0"): 10,
        ("vllm:spec_decode_num_draft_tokens_per_pos_total", "2"): 10,
        ("vllm:request_success_total", "stop"): 5,
        ("vllm:request_success_total", "length"): 0,
        ("vllm:request_success_total", "abort"): 1,
    }
    assert {key: seen[key] for key in expected} == expected


def test_the_live_baseline_is_shown(client: Client) -> None:
    client.engine.counts = {"decode_seconds": 10.0, "ar_seconds": 25.0, "speedup_vs_ar": 2.75}
    seen = samples(client)
    assert seen["paceline:speedup_vs_ar", ""] == 2.75
    assert seen["paceline:decode_seconds_total", ""] == 10
    assert seen["paceline:ar_decode_seconds_total", ""] == 25
    assert not any(name == "paceline:tpot_seconds" for name, _ in seen), "nobody was held back"


def test_a_holdback_is_compared_by_quantile() -> None:
    metrics = ServerMetrics("m", EngineStats)

    def ended(tpot: float | None, held_back: bool | None) -> None:
        times = RequestMetrics(0.0, 0.1, tpot, 1.0, held_back)
        metrics.finished(
            OutputDelta(request_id="", choice=0, finish_reason=FinishReason.STOP, metrics=times)
        )

    for index in range(101):
        ended(0.01 + 0.0001 * index, False)
        ended(0.03, True)
    ended(9.0, None)
    ended(None, True)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    assert found["paceline:tpot_seconds", "0.5", "m", "speculation"] == pytest.approx(0.015)
    assert found["paceline:tpot_seconds", "0.99", "m", "speculation"] == pytest.approx(0.0199)
    assert found["paceline:tpot_seconds", "0.99", "holdback", "m"] == pytest.approx(0.03)
    assert found["paceline:holdback_speedup", "0.5", "m"] == pytest.approx(2.0)


def test_requests_whose_prompt_is_not_read_yet_are_counted() -> None:
    sizes = {"token_budget": 16, "max_num_seqs": 3, "prefix_cache": False}
    config = EngineConfig(model="tiny", backend="torch", dtype="float32", threads=1, **sizes)
    engine = build_engine(config, tiny_model("float32"))
    engine.scheduler.cost = StepCost([1], [1.0])  # not of this machine's steps
    metrics = ServerMetrics("m", engine.stats)

    def gauges() -> tuple[float, float]:
        families = text_string_to_metric_families(metrics.render().decode())
        values = {sample.name: sample.value for family in families for sample in family.samples}
        return values["paceline:num_requests_in_prompt"], values["vllm:num_requests_running"]

    assert gauges() == (0, 0)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    for index, length in enumerate((5, 60, 60, 40)):
        prompt = [7 + (index + place) % 200 for place in range(length)]
        engine.add(engine.make_requests(prompt, params, request_id=str(index)))
    assert gauges() == (0, 0), "they wait in the queue, and hold no place"
    writing: set[str] = set()
    seen = []
    while engine.has_work:
        for delta in engine.step():
            writing.add(delta.request_id)
            if delta.finished:
                writing.remove(delta.request_id)
        prompting, running = gauges()
        assert prompting == running - len(writing)
        seen.append((prompting, running))
    # one long prompt after the other takes the rows that those who write leave
    assert seen.count((1, 2)) >= 3 and seen.count((1, 3)) >= 3 and (0, 3) in seen
    assert seen[-1] == (0, 0)


def test_two_servers_in_one_process_do_not_share_metrics(client: Client) -> None:
    client.chat()
    other = Client(FakeAsyncEngine(), ServerSettings())
    assert samples(other)["vllm:time_to_first_token_seconds_count", ""] == 0


def test_counters_by_cohort_and_drafter(client: Client) -> None:
    headers = {"X-Paceline-App": "shop", "X-Paceline-Region": "eu"}
    body = {"prompt": "Hi", "max_tokens": 8}
    assert client.post("/v1/completions", json=body, headers=headers).status_code == 200
    plain = {**body, "max_tokens": 1, "speculative": "off"}
    assert client.post("/v1/completions", json=plain).status_code == 200
    seen = {
        (
            sample.name.removeprefix("paceline:cohort_"),
            *map(sample.labels.get, LABELS),
        ): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith("paceline:cohort_")
    }
    drafted = ("fake-model", "shop", "und", "eu", "ngram")
    bare = ("fake-model", "none", "und", "none", "ar")
    assert {key[1:] for key in seen} == {drafted, bare}
    assert (seen["tokens_total", *drafted], seen["tokens_total", *bare]) == (8, 1)
    assert seen["draft_rounds_total", *drafted] == 3 and seen["draft_rounds_total", *bare] == 0
    assert seen["accepted_tokens_total", *drafted] == 5
    assert seen["requests_total", *drafted] == seen["requests_total", *bare] == 1
    assert (seen["timed_total", *drafted], seen["timed_total", *bare]) == (1, 0)
    assert seen["begun_total", *drafted] == seen["begun_total", *bare] == 1
    assert seen["ttft_seconds_total", *drafted] > 0 and seen["failures_total", *bare] == 0
