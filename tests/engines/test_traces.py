"""Answers of other engines become the same traces as our own server's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort
from paceline.dataset.traces.reader import read_requests, read_rounds, read_tokens
from paceline.dataset.traces.writer import TraceWriter
from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.openai_stream import take_openai
from paceline.engines.traces import answer_bytes, answer_trace

ASK = EngineAsk([1, 2, 3], 10, temperature=0.5)
COHORT = Cohort("Qwen3-8B", "shop", "de", "eu")


def vllm_answer(counts: dict[str, object] | None) -> EngineAnswer:
    """Return an answer of 8 tokens as vLLM's events tell it."""
    answer = EngineAnswer()
    choice = {"prompt_token_ids": [1, 2, 3], "token_ids": [11], "text": "a"}
    take_openai(answer, {"choices": [choice]})
    take_openai(answer, {"choices": [{"token_ids": [12, 13, 14], "text": "b"}]})
    take_openai(answer, {"choices": [{"token_ids": [15, 16], "text": "c"}]})
    last = {"token_ids": [17, 18], "text": "d", "finish_reason": "length"}
    details = {"cached_tokens": 2}
    usage = {"prompt_tokens": 3, "completion_tokens": 8, "prompt_tokens_details": details}
    event: dict[str, object] = {"choices": [last], "usage": usage}
    take_openai(answer, event | ({"metrics": {"speculative_decoding": counts}} if counts else {}))
    return answer


COUNTS = {
    "num_spec_steps": 3,
    "num_draft_tokens": 9,
    "num_accepted_draft_tokens": 4,
    "per_step_drafted": [3, 3, 3],
    "per_step_accepted": [2, 1, 1],
}


def write(folder: Path, answer: EngineAnswer, **options: object) -> None:
    writer = TraceWriter(folder)
    make = answer_trace(answer, ASK, id="r-1", cohort=COHORT, engine="vllm", **options)  # type: ignore[arg-type]
    assert writer.offer(make, answer_bytes(answer))
    writer.close()
    assert writer.counts.written == 1


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}, "regex": None}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"structured_outputs": {"choice": ["a", "b"]}}, True),
        ({"ebnf": "root ::= 'a'"}, True),
        ({"sampling_params": {"json_schema": "{}"}}, True),
        ({"sampling_params": {"top_k": 5}, "tool_choice": "auto"}, False),
        ({"tool_choice": "required"}, True),
    ],
)
def test_what_a_grammar_bound_is_marked(
    fields: dict[str, object], bound: bool, tmp_path: Path
) -> None:
    ask = EngineAsk([1, 2, 3], 10, fields=fields)
    writer = TraceWriter(tmp_path)
    answer = vllm_answer(None)
    make = answer_trace(answer, ask, id="r-1", cohort=COHORT, engine="vllm")
    assert writer.offer(make, answer_bytes(answer))
    writer.close()
    (row,) = read_requests(tmp_path)
    assert row.grammar is bound


def test_an_answer_of_vllm_is_traced(tmp_path: Path) -> None:
    write(tmp_path, vllm_answer(COUNTS), drafter="d", version="2", draft_bound=3, session="s")
    (row,) = read_requests(tmp_path)
    assert row.cohort == COHORT and row.engine == "vllm" and row.finish == "length"
    assert (row.prompt_tokens, row.output_tokens, row.cached_tokens) == (3, 8, 2)
    assert (row.rounds, row.draft_rounds, row.drafted, row.accepted) == (4, 3, 9, 4)
    assert (row.drafted_by_position, row.accepted_by_position) == ([3, 3, 3], [3, 1, 0])
    assert row.acceptance_length == pytest.approx(1 + 4 / 3)
    assert (row.drafter, row.version, row.draft_bound) == ("d", "2", 3)
    assert row.ttft is not None and row.total is not None and row.total >= row.ttft
    assert row.temperature == 0.5 and row.scope == "" and row.session not in ("", "s")
    rounds = list(read_rounds(tmp_path))
    assert [(each.position, each.drafted, each.accepted) for each in rounds] == [
        (1, 3, 2), (4, 3, 1), (6, 3, 1),
    ]  # fmt: skip
    assert all(each.step_requests is None and each.step_seconds is None for each in rounds)
    assert list(read_tokens(tmp_path)) == [], "nobody has consented"


def test_an_engine_that_tells_nothing_has_no_acceptance(tmp_path: Path) -> None:
    write(tmp_path, vllm_answer(None))
    (row,) = read_requests(tmp_path)
    assert (row.rounds, row.draft_rounds, row.acceptance_length) == (8, 0, None)
    assert list(read_rounds(tmp_path)) == []


def test_token_ids_are_kept_with_consent(tmp_path: Path) -> None:
    write(tmp_path, vllm_answer(COUNTS), scope="own", key="team-a", token_days=2)
    assert list(read_tokens(tmp_path)) == []
    (mine,) = read_tokens(tmp_path, for_key="team-a")
    assert mine.prompt_ids == (1, 2, 3) and mine.output_ids == tuple(range(11, 19))
    (row,) = read_requests(tmp_path)
    assert row.expires is not None and row.expires - time.time() == pytest.approx(172_800, abs=60)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"scope": "all"}, "scope: got 'all'"), ({"scope": "own"}, "the name of its key")],
)
def test_a_consent_that_is_none_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        answer_trace(EngineAnswer(), ASK, id="a", cohort=COHORT, engine="vllm", **options)  # type: ignore[arg-type]
