"""A stream that ends in the middle of an accepted draft ends as it would without drafts.

Replay drafts the true continuation, so one round accepts fifteen tokens. The end is planted at each
of them in turn.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.core import FinishReason, OutputDelta, SamplingParams, SpeculativeParams
from paceline.engine.engine import Engine
from tests.deltas import stats_of
from tests.engine.test_streams import Finished, collect
from tests.engine.tiny import EngineFactory, byte_tokenizer

LONGEST = 15
LETTERS = [
    byte_tokenizer().convert_tokens_to_ids(chr(c)) for c in (*range(65, 91), *range(97, 123))
]
# Only letters, so that every token is a character and can be a stop string; each of them once.
PARAMS: dict[str, Any] = {
    "temperature": 0,
    "logit_bias": {token: 100.0 for token in LETTERS},
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
    "logprobs": 1,
    "max_tokens": LONGEST + 8,
}


def stream(
    engine: Engine, prompt: list[int], wishes: dict[str, Any], *, eos: int | None = None, **how: Any
) -> list[OutputDelta]:
    params = SamplingParams(**PARAMS | wishes)
    requests = engine.make_requests(prompt, params, SpeculativeParams(**how), request_id="r")
    if eos is not None:
        requests[0].eos_ids, requests[0].prepared = frozenset({eos}), None
    engine.add(requests)
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    assert [d.finished for d in deltas] == [False] * (len(deltas) - 1) + [True]
    engine.check_integrity()
    assert engine.cache.free_blocks == engine.cache.num_blocks
    return deltas


def prompt_with_distinct_answer(engine: Engine) -> tuple[list[int], Finished]:
    """A prompt whose answer repeats no token, so that a stop planted in it is met there first."""
    for seed in range(100):
        prompt = random.Random(seed).choices(range(256), k=9)
        answer = collect(stream(engine, prompt, {}, off=True))
        if len(set(answer.tokens[: LONGEST + 2])) == LONGEST + 2:
            return prompt, answer
    raise AssertionError("every answer repeats a token")


def ends_at(answer: Finished, index: int) -> dict[str, dict[str, Any]]:
    """Wishes that make the stream end with output token `index`."""
    token, letter = answer.tokens[index], answer.text[index]
    return {
        "eos": {"eos": token},
        "stop token": {"wishes": {"stop_token_ids": (token,)}},
        "stop string": {"wishes": {"stop": (letter,)}},
        "stop string of two tokens": {"wishes": {"stop": (answer.text[index - 1] + letter,)}},
        "stop string in a longer one": {"wishes": {"stop": (answer.text[index:] + "0", letter)}},
        "max_tokens": {"wishes": {"max_tokens": index + 1}},
    }


def test_every_kind_of_end_at_every_draft_position(make_engine: EngineFactory) -> None:
    plain = make_engine(None)
    engine = make_engine(f"replay,al={LONGEST + 1},max_draft_len={LONGEST}")
    prompt, answer = prompt_with_distinct_answer(plain)
    engine.drafters["replay"].learn(prompt, answer.tokens)
    for position in range(LONGEST):
        index = position + 1  # the prompt's step chooses token 0, the draft begins behind it
        for kind, how in ends_at(answer, index).items():
            how = {"wishes": {}, **how}
            where = f"{kind} at draft position {position}"
            deltas = stream(engine, prompt, **how)
            got, wanted = collect(deltas), collect(stream(plain, prompt, **how))
            assert got == wanted, where
            assert got.tokens == answer.tokens[: index + 1], where
            by_length = kind == "max_tokens"
            reason = FinishReason.LENGTH if by_length else FinishReason.STOP
            assert got.end[0] == reason and got.end[3] == index + 1, where
            assert len(got.logprobs) == len(got.tokens) == sum(len(d.kinds) for d in deltas), where
            # One round for the prompt, one that accepted the block the end lies in. The last token
            # before max_tokens is never drafted: it comes as the bonus.
            stats = stats_of(deltas)
            assert stats.rounds == 2, where
            assert stats.accepted_tokens == index - by_length, where


@pytest.mark.parametrize("kind", ["eos", "stop token", "stop string"])
def test_an_end_before_min_tokens_is_not_one(make_engine: EngineFactory, kind: str) -> None:
    plain = make_engine(None)
    engine = make_engine(f"replay,al={LONGEST + 1},max_draft_len={LONGEST}")
    prompt, answer = prompt_with_distinct_answer(plain)
    how = {"wishes": {}, **ends_at(answer, 6)[kind]}
    how["wishes"] = how["wishes"] | {"min_tokens": 10}
    wanted = collect(stream(plain, prompt, **how))
    engine.drafters["replay"].learn(prompt, wanted.tokens)
    deltas = stream(engine, prompt, **how)
    assert collect(deltas) == wanted
    assert len(wanted.tokens) >= 10 and stats_of(deltas).accepted_tokens > 0
