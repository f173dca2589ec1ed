"""Groups that decode in turns on one engine: a step is for one of them, and changes no text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.bench.steps.groups import Steady, StepGroup
from paceline.bench.turns import in_turns, ratio, ratio_interval
from paceline.core import FinishReason, InvalidRequest, SamplingParams, SpeculativeParams
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from tests.engine.tiny import tiny_model

PROMPTS = [[5 + i, 17, 80, 3 * i, 41, 9, 9, 9] for i in range(3)]
OFF = SpeculativeParams(off=True)


def make_engine(**options: object) -> Engine:
    settings = {"drafter": "suffix", "dtype": "float32", "kv_memory": 2**22, "max_num_seqs": 16}
    return build_engine(
        EngineConfig(model="tiny", **{**settings, **options}), tiny_model("float32")
    )


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine()


@pytest.fixture
def steady(engine: Engine) -> Iterator[Steady]:
    yield Steady(engine)
    assert not engine.has_work
    engine.check_integrity()


def alone(engine: Engine, length: int) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    texts = []
    for number, prompt in enumerate(PROMPTS):
        (request,) = engine.make_requests(prompt, params, OFF, request_id=f"alone-{number}")
        engine.add([request])
        while engine.has_work:
            engine.step()
        texts.append(request.output_ids)
    return texts


def texts(group: StepGroup) -> list[list[int]]:
    return [request.output_ids for request in group.requests]


def test_a_step_is_for_one_group_and_leaves_the_text_as_it_is(
    steady: Steady, engine: Engine
) -> None:
    plain, drafted = steady.begin(PROMPTS, OFF), steady.begin(PROMPTS, SpeculativeParams())
    assert [len(text) for text in texts(plain)] == [1, 1, 1]  # up to the first token, all of them
    for _ in range(20):
        before = drafted.tokens
        assert steady.step(plain).committed == (1, 1, 1)
        assert drafted.tokens == before
        before = plain.tokens
        assert all(count >= 1 for count in steady.step(drafted).committed)
        assert plain.tokens == before
    said, drafted_said = texts(plain), texts(drafted)
    steady.end(plain)
    steady.end(drafted)
    for text, own, other in zip(alone(engine, 40), said, drafted_said, strict=True):
        assert own == text[: len(own)]
        assert other[:40] == text[: len(other)]


def test_a_step_says_what_it_took_and_where(steady: Steady) -> None:
    group = steady.begin(PROMPTS, OFF)
    first, second = steady.step(group), steady.step(group)
    assert (first.context, second.context) == (8, 9)  # the anchor is not counted
    assert 0 <= first.drafting <= first.seconds
    steady.end(group)


def test_draft_lengths_change_from_step_to_step() -> None:
    steady = Steady(make_engine(drafter="mock,max_draft_len=8", rule="synthetic", synthetic=(1.0,)))
    group = steady.begin(PROMPTS, SpeculativeParams(policy="fixed"))
    for length in (0, 8, 3):
        group.draft(length)
        assert steady.step(group).committed == (length + 1,) * 3
    steady.end(group)


def test_requests_that_end_leave_the_others_going(steady: Steady) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 4, 6)]
    group = steady.begin(PROMPTS, OFF, params)
    assert group.complete
    while group.running:
        steady.step(group)
    assert [len(text) for text in texts(group)] == [2, 4, 6]
    assert {request.finish_reason for request in group.requests} == {FinishReason.LENGTH}
    steady.end(group)


def test_too_little_memory_is_said_and_not_measured() -> None:
    steady = Steady(make_engine(kv_memory=2**18, max_model_len=128))
    prompts = [prompt * 10 for prompt in PROMPTS]
    with pytest.raises(InvalidRequest, match=r"kv_memory.*all groups"):
        steady.begin(prompts * 3, OFF)
    steady.engine.check_integrity()
    groups = [steady.begin(prompts, OFF) for _ in range(2)]
    with pytest.raises(InvalidRequest, match=r"kv_memory.*all groups"):
        for _ in range(60):
            for group in groups:
                steady.step(group)


def test_seeds_are_each_requests_own(steady: Steady) -> None:
    group = steady.begin(PROMPTS, OFF, seed=40)
    assert [request.seed for request in group.requests] == [40, 41, 42]
    steady.end(group)


def test_turns_take_every_side_once_a_round_and_leave_the_warm_up_out() -> None:
    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}
    found = in_turns(sides, 5, warm_up=2)
    rounds = [set(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert rounds == [set("abc")] * 7
    assert all(len(values) == 5 and min(values) > 6 for values in found.values())
    assert len({tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)}) > 1


def test_ratios_are_of_neighbours() -> None:
    drift = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert ratio([3 * d for d in drift], drift) == 3
    assert ratio_interval([3 * d for d in drift], drift) == (3, 3, 3)
    middle, low, high = ratio_interval([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert middle == 3 and low < 3 < high
