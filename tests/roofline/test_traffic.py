"""Traffic: logs line by line, a server's metrics, Little's law, Amdahl, and plain verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.roofline.traffic.log import read_log
from paceline.roofline.traffic.metrics import parse_metrics, traffic_of, watch
from paceline.roofline.traffic.worth import Spread, TrafficProfile, amdahl, judge

LINE: dict[str, Any] = {
    "usage": {"prompt_tokens": 100, "completion_tokens": 50},
    "start_time": 1000.0,
    "first_token_time": 1000.5,
    "end_time": 1002.0,
}


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: Any) -> Path:
        path = tmp_path / "log.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts))
        return path

    return write


def test_lengths_shares_and_concurrency_of_a_log(log: Callable[..., Path]) -> None:
    second = {**LINE, "start_time": 1001.0, "first_token_time": 1001.5, "end_time": 1004.0}
    second["usage"] = {"prompt_tokens": 300, "completion_tokens": 150}
    found = read_log(log(LINE, "", second))
    assert found.requests == 2
    assert found.prompt_tokens.mean == 200 and found.output_tokens.p50 == 100
    assert found.latency == pytest.approx(2.5) and found.ttft == pytest.approx(0.5)
    assert found.decode_share == pytest.approx(4 / 5)
    assert found.concurrency == pytest.approx(5 / 4)  # 2 requests in 4 s, 2.5 s each
    assert found.decoding == pytest.approx(4 / 3.5)  # 1.5 s and 2.5 s, half a second together
    assert found.tpot == pytest.approx(4 / (49 + 149))
    assert found.context == pytest.approx((50 * 125 + 150 * 375) / 200)


@pytest.mark.parametrize(
    "line",
    [
        {"response": {"usage": LINE["usage"]}, "start_time": 1000, "end_time": 1002,
         "ttft_ms": 500},
        {"response": {"body": {"usage": {"input_tokens": 100, "output_tokens": 50}}, "id": 1},
         "start_time": "1970-01-01T00:16:40+00:00", "latency_ms": 2000, "ttft_ms": 500},
        {**LINE, "model": "m", "messages": [], "choices": [], "id": "x", "created": 1000},
    ],
)  # fmt: skip
def test_shapes_of_a_line_that_say_the_same(line: Any, log: Callable[..., Path]) -> None:
    assert read_log(log(line)) == read_log(log(LINE))


def test_a_log_without_first_tokens_gives_upper_bounds_and_says_so(
    log: Callable[..., Path],
) -> None:
    found = read_log(log({k: v for k, v in LINE.items() if k != "first_token_time"}))
    assert found.decode_share is None and found.ttft is None
    assert any("upper bounds" in note for note in found.notes)
    assert judge(found, 4, 2.0).gain == 2.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "traffic, line 2: got '{'; expected a JSON object"),
        ([1], "traffic, line 2: got [1]; expected a JSON object"),
        ({**LINE, "duration": 3}, "traffic, line 2, duration: got 3; expected one of usage"),
        ({"start_time": 1, "end_time": 2}, "traffic, line 2, usage: got null; expected prompt_tok"),
        ({**LINE, "usage": {"prompt_tokens": -1, "completion_tokens": 2}}, "prompt_tokens: got -1"),
        ({**LINE, "start_time": "2026-01-01T00:00:00"}, "ISO 8601 with a zone"),
        ({**LINE, "start_time": 1.7e12}, "line 2, start_time: got 1700000000000.0"),
        ({**LINE, "end_time": 999}, "line 2, end_time: got 999.0; expected not before"),
        ({**LINE, "first_token_time": 1003}, "line 2, first_token_time: got 1003.0"),
        ({**LINE, "ttft_ms": 3}, "first_token_time or ttft_ms, not both"),
        ({"usage": LINE["usage"], "end_time": 3}, "line 2, start_time: got null"),
        ({"usage": LINE["usage"], "start_time": 3}, "end_time or latency_ms, in every line"),
    ],
)
def test_a_line_that_is_refused_is_named(line: Any, said: str, log: Callable[..., Path]) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_log(log(LINE, line))
    assert said in str(error.value)


def test_an_empty_log_is_refused(log: Callable[..., Path]) -> None:
    with pytest.raises(InvalidRequest, match="at least one request"):
        read_log(log(""))


# -- a running server ------------------------------------------------------------------------------


def histogram(name: str, count: int, total: float, buckets: dict[str, int]) -> list[str]:
    label = 'model_name="m"'
    lines = [f'{name}_bucket{{{label},le="{edge}"}} {seen}' for edge, seen in buckets.items()]
    return [*lines, f"{name}_sum{{{label}}} {total}", f"{name}_count{{{label}}} {count}"]


def scrape(count: int, seconds: float, running: int, drafts: int = 0) -> str:
    lines = [
        "# HELP something",
        *histogram("vllm:request_prompt_tokens", count, 100.0 * count,
                   {"64": count // 4, "128": count, "+Inf": count}),
        *histogram("vllm:request_generation_tokens", count, 40.0 * count,
                   {"32": 0, "64": count, "+Inf": count}),
        *histogram("vllm:e2e_request_latency_seconds", count, seconds, {"+Inf": count}),
        *histogram("vllm:time_to_first_token_seconds", count, seconds / 4, {"+Inf": count}),
        f'vllm:num_requests_running{{model_name="m"}} {running}',
        f'vllm:spec_decode_num_drafts_total{{model_name="m"}} {drafts}',
        f'vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} {2 * drafts}',
    ]  # fmt: skip
    return "\n".join(lines)


def test_metrics_of_a_server_that_is_watched() -> None:
    scrapes = [parse_metrics(scrape(40, 80, 6)), parse_metrics(scrape(60, 120, 2, drafts=9))]
    found = traffic_of(scrapes, 10, "here")
    assert found.requests == 60
    assert found.prompt_tokens.p50 == pytest.approx(64 + 64 * (30 - 15) / 45)
    assert found.output_tokens.p99 == pytest.approx(32 + 32 * 0.99)
    assert found.latency == pytest.approx(2) and found.decode_share == pytest.approx(0.75)
    assert found.concurrency == pytest.approx(4)  # 40 s of latency ended within 10 s
    assert found.decoding == pytest.approx(4 * 0.75)
    assert found.acceptance_length == pytest.approx(3)


def test_a_server_is_asked_under_its_metrics_address() -> None:
    asked = []

    def fetch(address: str) -> str:
        asked.append(address)
        return scrape(40, 80, 0)

    found = watch("http://here:8000/", 0, fetch)
    assert asked == ["http://here:8000/metrics"]
    assert found.batch == 1 and any("nobody" in note for note in found.notes)


@pytest.mark.parametrize("text", ["", "up 1", scrape(0, 0, 0)])
def test_a_server_without_the_numbers_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="traffic: got 'http://here/metrics'"):
        watch("http://here", 0, lambda address: text)


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(InvalidRequest, match="metrics that answer"):
        watch("http://127.0.0.1:9", 0)


# -- Amdahl ----------------------------------------------------------------------------------------


def traffic(share: float | None, decoding: float = 1.0) -> TrafficProfile:
    size = Spread(100, 100, 100, 100)
    return TrafficProfile(
        source="here", requests=100, prompt_tokens=size, output_tokens=size, latency=1.0, ttft=0.1,
        tpot=0.01, decode_share=share, concurrency=decoding, decoding=decoding, context=150.0,
    )  # fmt: skip


def test_amdahl() -> None:
    assert amdahl(1, 3) == pytest.approx(3)
    assert amdahl(0, 3) == pytest.approx(1)
    assert amdahl(0.8, 4) == pytest.approx(1 / (0.2 + 0.2))


def test_what_is_worth_it() -> None:
    verdict = judge(traffic(0.8), 5, 4.0)
    assert verdict.worth_it and verdict.gain == pytest.approx(2.5)
    assert verdict.limit == pytest.approx(5) and not verdict.reasons


@pytest.mark.parametrize(
    ("share", "length", "speedup", "reason"),
    [
        (0.03, 8, 3.0, "prompts and waiting dominate: 3% of the time is decoding"),
        (0.95, 0, 1.0, "drafts do not pay with 1 requests"),
        (0.95, 1, 1.02, "even at its best draft length decoding is 1.02× AR"),
        (0.10, 4, 1.5, "decoding gets 1.50× as fast, but is only 10% of the time"),
    ],
)
def test_what_is_not_worth_it_has_one_plain_reason(
    share: float, length: int, speedup: float, reason: str
) -> None:
    verdict = judge(traffic(share), length, speedup)
    assert not verdict.worth_it and verdict.gain < 1.05
    assert len(verdict.reasons) == 1 and reason in verdict.reasons[0]
