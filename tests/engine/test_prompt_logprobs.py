"""Log-probabilities of prompts: right, whatever the cache holds and however the prompt is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.core import FinishReason, InvalidRequest, Request, SamplingParams
from paceline.engine.engine import Engine
from paceline.engine.runner import even_batch
from paceline.engine.sampler import token_logprobs, token_logprobs_rows
from paceline.engine.scheduler import SCORED_BESIDE
from paceline.engine.step_cost import StepCost
from paceline.kernels import ops

from .tiny import EngineFactory

PROMPT = [int(token) for token in np.random.default_rng(0).integers(4, 256, 75)]
SCORE = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True, prompt_logprobs=2, logprobs=2)
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


def run(engine: Engine, *requests: Request) -> dict[str, list]:
    engine.add(requests)
    deltas: dict[str, list] = {request.id: [] for request in requests}
    while engine.has_work:
        for delta in engine.step():
            deltas[delta.request_id].append(delta)
    engine.check_integrity()
    return deltas


def scored(engine: Engine, params: SamplingParams = SCORE, prompt: list[int] = PROMPT) -> list:
    (request,) = engine.make_requests(prompt, params, request_id="score")
    return run(engine, request)[request.id]


def test_they_are_those_of_one_forward_over_the_prompt(make_engine: EngineFactory) -> None:
    told = scored(make_engine(token_budget=16, max_num_seqs=4))[0].prompt_logprobs
    network = make_engine().runner.network
    logits = network.forward(even_batch(PROMPT)).logits.cpu()
    expected = torch.log_softmax(logits.double(), dim=-1)
    assert [row.token for row in told] == PROMPT[1:]
    for place, row in enumerate(told):
        assert row.logprob == pytest.approx(float(expected[place, row.token]), abs=1e-4)
        best = expected[place].topk(2).values.tolist()
        assert [logprob for _, logprob in row.top] == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("most", [1, 7, 64])
def test_a_cached_prefix_and_a_bound_on_logits_change_nothing(
    make_engine: EngineFactory, most: int
) -> None:
    plain = scored(make_engine())[0].prompt_logprobs
    engine = make_engine(token_budget=32, max_num_seqs=8)
    engine.scheduler.most_scored = most
    scored(engine, SamplingParams(max_tokens=4))  # leaves the prompt in the cache
    requests = [engine.make_requests(PROMPT, SCORE, request_id=f"r{i}")[0] for i in range(3)]
    for deltas in run(engine, *requests).values():
        assert deltas[0].prompt_logprobs == plain
        assert deltas[0].cached_tokens == 0
        assert all(delta.prompt_logprobs is None for delta in deltas[1:])


def test_a_token_scores_as_it_did_when_it_was_chosen(make_engine: EngineFactory) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=30, temperature=1, seed=5, ignore_eos=True, logprobs=2)
    deltas = scored(engine, params)
    output = [token for delta in deltas for token in delta.token_ids]
    chosen = [row for delta in deltas for row in delta.logprobs]
    again = scored(engine, SCORE, [*PROMPT, *output])[0].prompt_logprobs
    assert list(again[len(PROMPT) - 1 :]) == chosen


def test_a_preempted_prompt_is_scored_once(make_engine: EngineFactory) -> None:
    plain = scored(make_engine())[0].prompt_logprobs
    engine = make_engine(token_budget=16, max_num_seqs=4)
    engine.scheduler.most_scored = 8
    (request,) = engine.make_requests(PROMPT, SCORE, request_id="r")
    engine.add([request])
    for _ in range(3):
        engine.step()
    engine.scheduler.running.remove(request)
    engine.scheduler.requeue(request)
    engine._roster.leave(request)
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    assert deltas[0].prompt_logprobs == plain


def test_rows_scored_together_are_those_of_each_row() -> None:
    logits = torch.randn(20, 3000, generator=torch.Generator().manual_seed(0)).round(decimals=2)
    tokens = [int(row.argsort()[place]) for place, row in enumerate(logits)]
    for count in (0, 1, 5):
        together = token_logprobs_rows(logits, tokens, count)
        for row, token, told in zip(logits, tokens, together, strict=True):
            assert told == token_logprobs(row, token, count)
            assert told.logprob == float(row[token]) - ops.logsumexp(row)
            assert [i for i, _ in told.top] == row.argsort(descending=True, stable=True)[
                :count
            ].tolist()


def test_few_rows_are_scored_beside_others(make_engine: EngineFactory) -> None:
    engine = make_engine(token_budget=64, max_num_seqs=4)
    engine.scheduler.cost = StepCost([1], [1.0])  # this machine's may allow even fewer rows
    (talker,) = engine.make_requests(PROMPT[:4], LONG, request_id="talker")
    engine.add([talker])
    engine.step()
    (scorer,) = engine.make_requests(PROMPT, SCORE, request_id="scorer")
    engine.add([scorer])
    engine.step()
    assert scorer.scored == SCORED_BESIDE == 16
    engine.abort(talker.id)
    engine.step()
    assert scorer.scored == len(PROMPT) - 1  # nobody waits any more


def test_no_token_is_chosen_for_a_prompt_alone(make_engine: EngineFactory) -> None:
    engine = make_engine()
    for prompt, count in ((PROMPT, 74), (PROMPT[:1], 0)):
        (delta,) = scored(engine, SamplingParams(max_tokens=0, prompt_logprobs=0), prompt)
        assert delta.finish_reason is FinishReason.LENGTH
        assert (delta.token_ids, delta.completion_tokens, delta.round) == ((), 0, None)
        assert len(delta.prompt_logprobs) == count and delta.metrics is not None
        assert (delta.metrics.ttft, delta.metrics.tpot) == (None, None) and delta.metrics.total > 0
    assert not engine.has_work and engine.cache.free_blocks == engine.cache.num_blocks


def test_several_choices_are_refused(make_engine: EngineFactory) -> None:
    with pytest.raises(InvalidRequest, match="n: got 2; expected 1 beside"):
        SamplingParams(n=2, prompt_logprobs=0)
