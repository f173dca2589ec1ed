"""The output is the same token for token whatever speculation, batching and memory do.

Every stream is compared with the same request run alone without speculation: tokens, text, finish
reason, usage and log-probabilities, to the bit.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.core import OutputDelta, SamplingParams, SpeculativeParams, Verdict
from paceline.engine.costs import Costs
from paceline.engine.engine import Engine
from paceline.engine.step_cost import StepCost
from tests.drafters.watched import watch
from tests.engine.tiny import EngineFactory, save_tiny
from tests.models.dflash.tiny import write_drafter


@dataclass
class Finished:
    tokens: list[int]
    text: str
    logprobs: list[Any] | None
    end: tuple[Any, ...]
    cached: int = field(compare=False)  # depends on what ran before


def collect(deltas: list[OutputDelta]) -> Finished:
    last = deltas[-1]
    assert {d.cached_tokens for d in deltas} == {last.cached_tokens}, "changed under way"
    return Finished(
        tokens=[t for d in deltas for t in d.token_ids],
        text="".join(d.text for d in deltas),
        logprobs=[p for d in deltas for p in d.logprobs or []],
        end=(last.finish_reason, last.stop_reason, last.prompt_tokens, last.completion_tokens),
        cached=last.cached_tokens,
    )


def run(
    engine: Engine, jobs: list[tuple[list[int], SamplingParams]], *, together: int, **wishes: Any
) -> list[Finished]:
    """Runs the jobs with up to `together` in flight; a new one joins whenever one ends."""
    waiting = list(enumerate(jobs))
    got: dict[str, list[OutputDelta]] = {}
    in_flight = 0
    while waiting or engine.has_work:
        while waiting and in_flight < together:
            index, (prompt, params) = waiting.pop(0)
            requests = engine.make_requests(
                prompt, params, SpeculativeParams(**wishes), request_id=f"job{index}"
            )
            got |= {r.id: [] for r in requests}
            engine.add(requests)
            in_flight += len(requests)
        for delta in engine.step():
            got[delta.request_id].append(delta)
            in_flight -= delta.finished
        engine.check_integrity()
    assert engine.cache.free_blocks == engine.cache.num_blocks
    return [collect(deltas) for deltas in got.values()]


def jobs(count: int, seed: int = 11, longest: int = 60) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of many lengths, some repetitive and some sharing a prefix; every sampling option."""
    rng = random.Random(seed)
    shared = [rng.randrange(256) for _ in range(40)]
    made = []
    for i in range(count):
        unit = [rng.randrange(256) for _ in range(rng.randrange(1, 12))]
        prompt = (shared if i % 3 == 0 else []) + unit * rng.randrange(1, 9)
        common: dict[str, Any] = {"max_tokens": rng.randrange(20, longest), "seed": 100 + i}
        made.append((prompt, SamplingParams(**common, **OPTIONS[i % len(OPTIONS)])))
    return made


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.3, "top_k": 20, "top_p": 0.9, "logprobs": 3},
    {"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logprobs": 0},
    {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.5, "logit_bias": {65: 5.0, 66: -100}},
    {"temperature": 0.1, "min_tokens": 10, "stop": ("a", "zz")},
    {"temperature": 1.0, "ignore_eos": True, "n": 2},
    {"temperature": 0.2, "stop_token_ids": (10, 20, 30), "logprobs": 5},
]


TRUTHS: dict[tuple[Any, str], list[Finished]] = {}  # by backend and work


def expected(make_engine: EngineFactory, work: list[Any]) -> list[Finished]:
    """Answers of each job alone, without speculation; made once for each backend."""
    key = getattr(make_engine, "backend", make_engine), repr(work)
    if key not in TRUTHS:
        TRUTHS[key] = run(make_engine(prefix_cache=False), work, together=1)
    return deepcopy(TRUTHS[key])


DRAFTERS = ["ngram", "suffix", "auto"]


@pytest.mark.parametrize("together", [1, 8], ids=["alone", "batch-of-8"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_streams_equal_speculation_off(
    make_engine: EngineFactory, drafter: str, together: int
) -> None:
    work = jobs(16)
    engine = make_engine(drafter)
    assert run(engine, work, together=together) == expected(make_engine, work)
    assert engine.stats().speculation.accepted_tokens > 0, (
        "no draft was accepted: nothing was tested"
    )


@pytest.mark.parametrize("drafter", ["auto", "ngram"])
def test_streams_equal_when_lengths_follow_the_cost(
    make_engine: EngineFactory, drafter: str
) -> None:
    work = jobs(16)
    engine = make_engine(drafter, draft_policy="throughput")
    # A forward whose rows are nearly free up to a point: drafts are made, and cut.
    engine.scheduler.cost = StepCost([1], [1.0])  # nothing is learned from this machine's steps
    engine.drafting.use(Costs(StepCost([1, 12, 64], [1.0, 1.1, 6.0])))
    assert run(engine, work, together=6) == expected(make_engine, work)
    assert engine.stats().speculation.accepted_tokens > 0


@pytest.mark.parametrize("length", [0, 1, 3, 8])
def test_streams_equal_at_every_draft_length(make_engine: EngineFactory, length: int) -> None:
    work = jobs(8)
    engine = make_engine("ngram")
    assert run(engine, work, together=4, max_draft_len=length) == expected(make_engine, work)


def test_streams_equal_under_preemption_chunks_and_prefix_hits(make_engine: EngineFactory) -> None:
    work = jobs(24, seed=5, longest=110)
    engine = make_engine("auto", max_model_len=240, token_budget=24, max_num_seqs=24)
    small = make_engine(
        "auto",
        max_model_len=240,
        token_budget=24,
        max_num_seqs=24,
        kv_memory=engine.plan.kv_bytes_per_token * 16 * 15,
    )
    assert run(small, work, together=8) == expected(make_engine, work)
    stats = small.stats()
    assert stats.preemptions > 0, "memory was never short: nothing was tested"
    assert stats.prefix_hits > 0, "no prefix was found: nothing was tested"


def test_repeated_prompt_hits_the_prefix_cache_and_answers_the_same(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine("auto")
    job = jobs(1)
    first, second = run(engine, job, together=1), run(engine, job, together=1)
    assert first == second and engine.stats().prefix_hits >= 32


def test_replayed_truth_is_accepted_whole(make_engine: EngineFactory) -> None:
    work = [job for job in jobs(16) if job[1].n == 1]
    truth = expected(make_engine, work)
    engine = make_engine("replay,al=5,max_draft_len=8")
    for (prompt, _), result in zip(work, truth, strict=True):
        engine.drafters["replay"].learn(prompt, result.tokens)
    assert run(engine, work, together=4) == truth
    stats = engine.stats()
    assert 1 + stats.speculation.accepted_tokens / stats.speculation.draft_rounds > 3


def test_control_a_verifier_that_believes_every_draft_changes_the_text(
    make_engine: EngineFactory,
) -> None:
    work = jobs(8)
    engine = make_engine("ngram")

    class Gullible:
        lossless, needs_q = True, False

        def verify(self, rows, draft, q):
            return Verdict(len(draft), rows.token(len(draft)))

    engine.verifier = engine._match = Gullible()
    assert run(engine, work, together=1) != expected(make_engine, work)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_greedy_is_the_same_under_every_rule(make_engine: EngineFactory, rule: str) -> None:
    work = [job for job in jobs(16) if job[1].greedy]
    engine = make_engine("ngram", rule=rule)
    assert run(engine, work, together=4) == expected(make_engine, work)


@pytest.mark.parametrize("drafter", ["auto", "dflash"])
def test_abort_at_any_time_leaves_the_others_alone(
    make_engine: EngineFactory, tmp_path: Path, drafter: str
) -> None:
    work = [job for job in jobs(24, seed=2) if job[1].n == 1]
    truth = expected(make_engine, work)
    spec = f"d={write_drafter(tmp_path / 'd')}" if drafter == "dflash" else drafter
    engine = make_engine(spec, max_model_len=256, token_budget=32, max_num_seqs=6)
    rng = random.Random(1)
    got: dict[str, list[OutputDelta]] = {}
    aborted = set()
    for index, (prompt, params) in enumerate(work):
        requests = engine.make_requests(prompt, params, request_id=str(index))
        got[requests[0].id] = []
        engine.add(requests)
    while engine.has_work:
        for delta in engine.step():
            got[delta.request_id].append(delta)
        if rng.random() < 0.3:
            victim = rng.choice([i for i in got if i not in aborted])
            if engine.abort(victim) is not None:
                aborted.add(victim)
        engine.check_integrity()
    assert aborted and engine.cache.free_blocks == engine.cache.num_blocks
    for (request_id, deltas), alone in zip(got.items(), truth, strict=True):
        if request_id not in aborted:
            assert collect(deltas) == alone
        else:
            tokens = [t for d in deltas for t in d.token_ids]
            assert tokens == alone.tokens[: len(tokens)]


@pytest.mark.parametrize("together", [1, 6], ids=["alone", "batch-of-6"])
def test_a_draft_model_changes_no_token(
    make_engine: EngineFactory, tmp_path: Path, together: int
) -> None:
    work = jobs(12)
    engine = make_engine(f"small=draft_model:{save_tiny(tmp_path)},max_draft_len=4")
    assert run(engine, work, together=together) == expected(make_engine, work)
    assert engine.stats().speculation.accepted_tokens > 0


def test_a_draft_model_survives_preemption_and_prefix_hits(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    work = jobs(16, seed=5, longest=110)
    spec = f"small=draft_model:{save_tiny(tmp_path)},max_draft_len=3"
    sizes = {"max_model_len": 240, "token_budget": 24, "max_num_seqs": 24}
    per_token = make_engine(spec, **sizes).plan.kv_bytes_per_token
    engine = make_engine(spec, **sizes, kv_memory=per_token * 16 * 15)
    assert run(engine, work, together=8) == expected(make_engine, work)
    assert engine.stats().preemptions > 0 and engine.stats().prefix_hits > 0


# Of random weights hardly a draft would be accepted: true tokens are planted among them.
DFLASH = [
    pytest.param({"layers": 2, "block": 8}, id="DFlash"),
    pytest.param({"layers": 3, "block": 6, "sliding": "ssf", "window": 30}, id="sliding"),
    pytest.param({"layers": 2, "block": 5, "second": True}, id="DFlash-2"),
]


def dflash_truth(truth: list[Finished], work: list[Any]) -> dict[tuple[int, ...], list[int]]:
    """Output by prompt; where two jobs share a prompt, the first one's does for planting."""
    known: dict[tuple[int, ...], list[int]] = {}
    outputs = iter(truth)
    for prompt, params in work:
        for _ in range(params.n):
            known.setdefault(tuple(prompt), next(outputs).tokens)
    return known


@pytest.mark.parametrize("together", [1, 6], ids=["alone", "batch-of-6"])
@pytest.mark.parametrize("shape", DFLASH)
def test_a_dflash_drafter_changes_no_token(
    make_engine: EngineFactory, tmp_path: Path, shape: dict[str, Any], together: int
) -> None:
    work = jobs(12)
    truth = expected(make_engine, work)
    engine = make_engine(f"d={write_drafter(tmp_path / 'drafter', **shape)}")
    watch(engine, dflash_truth(truth, work), rate=0.7)
    assert run(engine, work, together=together) == truth
    stats = engine.stats()
    assert stats.speculation.accepted_tokens > 0.2 * stats.speculation.draft_tokens


@pytest.mark.parametrize("shape", DFLASH)
def test_a_dflash_drafter_survives_preemption_and_prefix_hits(
    make_engine: EngineFactory, tmp_path: Path, shape: dict[str, Any]
) -> None:
    work = jobs(16, seed=5, longest=110)
    truth = expected(make_engine, work)
    spec = f"d={write_drafter(tmp_path / 'drafter', **shape)}"
    sizes = {"max_model_len": 240, "token_budget": 24, "max_num_seqs": 24, "draft_window": 64}
    per_token = make_engine(spec, **sizes).plan.kv_bytes_per_token
    engine = make_engine(spec, **sizes, kv_memory=per_token * 16 * 15)
    watch(engine, dflash_truth(truth, work), rate=0.7)
    assert run(engine, work, together=8) == truth
    assert engine.stats().preemptions > 0 and engine.stats().prefix_hits > 0
