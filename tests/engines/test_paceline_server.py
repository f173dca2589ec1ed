"""Our own server, asked through its adapter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.engines import EngineClient, connect
from paceline.engines.answers import EngineAsk
from paceline.engines.client import EngineRefused
from tests.server.conftest import listening
from tests.server.test_real_engine import tiny_engine

REPEATING = [5, 6, 7, 8] * 6  # look-ups draft well on it


@pytest.fixture(scope="module")
def client() -> Iterator[EngineClient]:
    # Drafts by a fixed policy: whether they pay hangs on how fast the tiny model is here.
    with listening(tiny_engine(draft_policy="fixed"), served_model_names=("tiny",)) as running:
        yield connect(running.url)


def test_rounds_are_told_one_by_one_with_their_places(client: EngineClient) -> None:
    answer = client.ask(EngineAsk(REPEATING, 32, ignore_eos=True))
    assert len(answer.token_ids) == 32 and answer.prompt_token_ids == REPEATING
    assert answer.rounds, "the engine has look-ups, and the prompt repeats itself"
    assert answer.drafts == sum(each.drafted > 0 for each in answer.rounds) > 0
    assert answer.drafted == sum(each.drafted for each in answer.rounds)
    assert answer.accepted == sum(each.accepted for each in answer.rounds)
    for one, following in zip(answer.rounds, answer.rounds[1:], strict=False):
        assert following.position >= one.position + one.accepted + 1
    last = answer.rounds[-1]
    assert last.position + last.accepted <= 32


def test_speculation_is_off_for_one_request(client: EngineClient) -> None:
    on = client.ask(EngineAsk(REPEATING, 16, ignore_eos=True))
    off = client.ask(EngineAsk(REPEATING, 16, ignore_eos=True, speculative=False))
    assert off.token_ids == on.token_ids
    assert off.rounds and not any(each.drafted for each in off.rounds)
    assert off.drafts == 0 and off.acceptance_length is None


def test_log_probabilities_are_by_token_id(client: EngineClient) -> None:
    chat = [{"role": "user", "content": "hello"}]
    for prompt in (REPEATING, chat):
        answer = client.ask(EngineAsk(prompt, 6, ignore_eos=True, top_logprobs=2))
        assert len(answer.logprobs) == 6
        for token, told in zip(answer.token_ids, answer.logprobs, strict=True):
            assert told.top[token] == told.chosen  # at temperature 0 it is the likeliest


def test_asking_many_keeps_their_order(client: EngineClient) -> None:
    asks = [EngineAsk([number, 6, 7], 4, ignore_eos=True) for number in range(5, 11)]
    together = client.ask_all(asks, at_once=3)
    assert [each.token_ids for each in together] == [
        each.token_ids for each in client.ask_all(asks)
    ]


def test_a_refusal_is_told_apart_and_harms_nothing(client: EngineClient) -> None:
    with pytest.raises(EngineRefused) as error:
        client.ask(EngineAsk(REPEATING, 4, temperature=-1.0))
    assert error.value.status == 400 and "temperature" in str(error.value)
    assert client.ask(EngineAsk(REPEATING, 1)).token_ids


def test_the_server_is_described(client: EngineClient) -> None:
    description = client.description
    assert (description.kind, description.model) == ("paceline", "tiny")
    assert description.drafter is not None and (description.draft_len or 0) > 0
    assert client.is_healthy()
    assert client.metrics().running == 0
