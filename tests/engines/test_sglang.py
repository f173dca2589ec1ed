"""SGLang, by exchanges that were written from the source of 0.5.23: it does not run without a GPU.

The shapes are those of srt/managers/tokenizer_manager.py (meta_info), srt/entrypoints/http_server
(/server_info, /v1/models) and srt/observability/metrics_collector.py (/metrics).
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.engines import connect
from paceline.engines.answers import EngineAnswer, EngineAsk, LogprobsById
from paceline.engines.sglang import Sglang

from .replayed import replayed, stream

MODELS = {"data": [{"id": "m", "owned_by": "sglang", "root": "m", "max_model_len": 4096}]}
INFO = {
    "version": "0.5.23",
    "model_path": "m",
    "speculative_algorithm": "DFLASH",
    "speculative_draft_model_path": "/models/drafter",
    "speculative_num_draft_tokens": 8,
    "internal_states": [{}],
    "frontend": "python",
}
FINAL = {
    "finish_reason": {"type": "length", "length": 6},
    "spec_accept_rate": 3 / 14,
    "spec_accept_length": 3.0,
    "spec_num_correct_drafts": 3,
    "spec_num_proposed_drafts": 14,
    "spec_verify_ct": 2,
    "spec_correct_drafts_histogram": [0, 1, 1, 0, 0, 0, 0, 0],
}


def meta(tokens: int, **more: Any) -> dict[str, Any]:
    plain = {"id": "r", "finish_reason": None, "prompt_tokens": 3, "cached_tokens": 2}
    return {**plain, "completion_tokens": tokens, **more}


CUMULATIVE = [  # the default: every event tells the whole answer so far
    {"text": "A", "output_ids": [11], "meta_info": meta(1), "prompt_token_ids": [1, 2, 3]},
    {"text": "A b c", "output_ids": [11, 12, 13], "meta_info": meta(3)},
    {"text": "A b c d e f", "output_ids": [11, 12, 13, 14, 15, 16], "meta_info": meta(6, **FINAL)},
]
INCREMENTAL = [  # with --incremental-streaming-output
    {"text": "A", "output_ids": [11], "meta_info": meta(1), "prompt_token_ids": [1, 2, 3]},
    {"text": " b c", "output_ids": [12, 13], "meta_info": meta(3)},
    {"text": " d e f", "output_ids": [14, 15, 16], "meta_info": meta(6, **FINAL)},
]


@pytest.mark.parametrize("events", [CUMULATIVE, INCREMENTAL])
def test_an_answer_tells_token_ids_and_what_its_drafts_did(events: list[dict[str, Any]]) -> None:
    answers = {"/v1/models": MODELS, "/server_info": INFO, "/generate": stream(*events)}
    with replayed(answers) as engine:
        client = connect(engine.url)
        answer = client.ask(EngineAsk([1, 2, 3], 6, seed=5, ignore_eos=True))
    assert engine.asked["/generate"] == {
        "input_ids": [1, 2, 3],
        "sampling_params": {
            "temperature": 0.0,
            "max_new_tokens": 6,
            "sampling_seed": 5,
            "ignore_eos": True,
        },
        "stream": True,
        "return_prompt_token_ids": True,
    }
    assert answer.token_ids == [11, 12, 13, 14, 15, 16] and answer.text == "A b c d e f"
    assert len(set(answer.arrivals)) == 3  # tokens of one event came together
    assert answer.prompt_token_ids == [1, 2, 3] and answer.cached_tokens == 2
    assert answer.finish_reason == "length"
    assert (answer.drafts, answer.drafted, answer.accepted) == (2, 14, 3)
    assert answer.acceptance_length == 2.5
    assert answer.rounds is None  # SGLang counts them per answer, not one by one


def test_log_probabilities_are_by_token_id() -> None:
    chosen = [[-0.1, 11, None], [-0.2, 12, None]]
    tops = [[[-0.1, 11, None], [-2.5, 7, None]], [[-0.2, 12, None]]]
    first = {"output_token_logprobs": chosen[:1], "output_top_logprobs": tops[:1]}
    second = {"output_token_logprobs": chosen, "output_top_logprobs": tops}
    answer = EngineAnswer()
    Sglang().take(answer, {"text": "A", "output_ids": [11], "meta_info": meta(1, **first)})
    Sglang().take(answer, {"text": "A b", "output_ids": [11, 12], "meta_info": meta(2, **second)})
    assert answer.logprobs == [
        LogprobsById(-0.1, {11: -0.1, 7: -2.5}),
        LogprobsById(-0.2, {12: -0.2}),
    ]


def test_a_conversation_is_answered_whole() -> None:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "A b c", "tool_calls": None},
        "finish_reason": "stop",
        "token_ids": [11, 12, 13],
        "prompt_token_ids": [1, 2],
        "meta_info": meta(3, **FINAL),
    }
    usage = {"prompt_tokens": 2, "completion_tokens": 3}
    answers = {
        "/v1/models": MODELS,
        "/server_info": INFO,
        "/v1/chat/completions": {"id": "x", "choices": [choice], "usage": usage},
    }
    with replayed(answers) as engine:
        answer = connect(engine.url).ask(EngineAsk([{"role": "user", "content": "Say a."}], 3))
    body = engine.asked["/v1/chat/completions"]
    assert "stream" not in body  # its chat streams tell no token ids
    assert body["return_token_ids"] and body["return_meta_info"]
    assert answer.token_ids == [11, 12, 13] and answer.text == "A b c"
    assert answer.prompt_token_ids == [1, 2] and answer.finish_reason == "stop"
    assert answer.accepted == 3


def test_a_server_is_described_by_its_configuration() -> None:
    with replayed({"/v1/models": MODELS, "/server_info": INFO}) as engine:
        description = connect(engine.url).description
    assert (description.kind, description.version) == ("sglang", "0.5.23")
    assert description.drafter == "/models/drafter" and description.draft_len == 7
    assert description.capabilities.acceptance and not description.capabilities.rounds
    plain = {**INFO, "speculative_algorithm": None, "speculative_num_draft_tokens": None}
    with replayed({"/v1/models": MODELS, "/server_info": plain}) as engine:
        description = connect(engine.url).description
    assert description.draft_len == 0 and not description.capabilities.acceptance


SCHEDULER = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
TOKENIZER = 'engine_type="unified",model_name="m"'
METRICS = f"""
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{SCHEDULER}}} 2.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{{SCHEDULER}}} 1.0
# TYPE sglang:token_usage gauge
sglang:token_usage{{{SCHEDULER}}} 0.25
# TYPE sglang:spec_num_draft_tokens gauge
sglang:spec_num_draft_tokens{{{SCHEDULER}}} 8.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{{{TOKENIZER},is_streaming="true"}} 90.0
sglang:prompt_tokens_total{{{TOKENIZER},is_streaming="false"}} 10.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{{cache_source="device",{TOKENIZER}}} 40.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{{TOKENIZER},is_streaming="true"}} 64.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{{TOKENIZER},is_streaming="true"}} 4.0
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{{{TOKENIZER},is_streaming="true"}} 0.8
sglang:time_to_first_token_seconds_bucket{{{TOKENIZER},is_streaming="true",le="0.4"}} 4.0
sglang:time_to_first_token_seconds_bucket{{{TOKENIZER},is_streaming="true",le="+Inf"}} 4.0
sglang:time_to_first_token_seconds_count{{{TOKENIZER},is_streaming="true"}} 4.0
"""
VERIFIED = f"""
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{{{TOKENIZER}}} 20.0
"""


def test_metrics_have_our_names() -> None:
    seen = Sglang().read_metrics(METRICS + VERIFIED)
    assert (seen.running, seen.waiting, seen.kv_usage) == (2, 1, 0.25)
    assert seen.prompt_tokens == 100 and seen.prefix_hit_share == 0.4
    assert seen.requests_finished == 4
    assert seen.ttft is not None and seen.ttft.mean == pytest.approx(0.2)
    # 64 tokens of 4 requests in 20 rounds: 4 came from prompts, 20 were bonus tokens
    assert (seen.drafts, seen.drafted, seen.accepted) == (20, 140, 40)
    assert seen.acceptance_length == 3.0


def test_without_speculation_nothing_is_told_of_drafts() -> None:
    seen = Sglang().read_metrics(METRICS)
    assert seen.drafts is None and seen.accepted is None and seen.acceptance_length is None
