"""Prompts as answers: echo with log-probabilities, tokens of a text, and messages left open."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from paceline.server import tokenising
from paceline.server.responses import Completion, write_json
from paceline.server.settings import ServerSettings
from paceline.server.tokenising import Detokenized, Tokenized

from .conftest import CHAT, Client, check_body
from .fake import REPLY, FakeAsyncEngine, byte_tokenizer

IDS = byte_tokenizer()("Hi!")["input_ids"]


def choice_of(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    check_body(response.json(), Completion)
    return response.json()["choices"][0]


def text_of(client: Client, ids: list[int]) -> str:
    return client.engine.tokenizer.decode(ids)


def test_echo_puts_the_prompt_first(client: Client) -> None:
    assert choice_of(client.complete(echo=True, max_tokens=4))["text"] == "Hi" + REPLY[:4]
    answer = client.complete(prompt=[IDS, IDS[:1]], echo=True, max_tokens=1)
    assert [c["text"] for c in answer.json()["choices"]] == ["Hi!E", "HE"]
    assert client.complete(echo=True, max_tokens=0).json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("prompt", [IDS, [IDS, IDS]])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_what_lm_eval_asks_for(client: Client, prompt: Any, max_tokens: int) -> None:
    options = {"max_tokens": max_tokens, "echo": True, "logprobs": 1, "temperature": 0}
    response = client.complete(prompt=prompt, seed=1234, **options)
    choice = choice_of(response)
    told, tokens = choice["logprobs"], [text_of(client, [token]) for token in IDS]
    assert told["tokens"] == tokens + [REPLY[:1]] * max_tokens
    assert told["token_logprobs"] == [None, -1.0, -1.0] + [-0.25] * max_tokens
    assert told["top_logprobs"][0] is None
    assert all(len(top) >= 1 for top in told["top_logprobs"][1:])
    assert told["text_offset"] == list(range(3 + max_tokens))
    assert choice["finish_reason"] == "length"
    assert len(response.json()["choices"]) == (2 if isinstance(prompt[0], list) else 1)


def test_a_streamed_echo_says_the_same(client: Client) -> None:
    options = {"prompt": IDS, "echo": True, "logprobs": 1, "max_tokens": 2}
    whole = choice_of(client.complete(**options))
    lines = client.complete(**options, stream=True).text.split("\n\n")
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    parts = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    for name, values in whole["logprobs"].items():
        assert [value for part in parts for value in part[name]] == values


def test_echo_is_refused_where_it_costs_too_much() -> None:
    client = Client(FakeAsyncEngine(max_model_len=8192), ServerSettings())
    refused = client.complete(n=2, echo=True, logprobs=0).json()["error"]
    assert refused["param"] == "n" and "1 beside echo and logprobs" in refused["message"]
    prompts = [[5] * 4000] * 2
    error = client.complete(prompt=prompts, echo=True, logprobs=20, max_tokens=1).json()["error"]
    assert error["message"].startswith("prompt: got 8000 tokens with 21 log-probabilities each")
    assert client.complete(prompt=prompts, echo=True, max_tokens=1).status_code == 200


def test_the_final_message_can_be_continued(client: Client) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": "Once upon"}]
    client.chat(messages=messages, continue_final_message=True)
    client.chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    for request in client.engine.submitted:
        assert text_of(client, request.prompt_ids).endswith("<|im_start|>assistant\nOnce upon")
    both = {"continue_final_message": True, "add_generation_prompt": True}
    error = client.chat(messages=messages, **both).json()["error"]
    assert error["param"] == "add_generation_prompt"


def test_tokens_of_a_text_and_back(client: Client) -> None:
    body = {"model": "fake-model", "prompt": "Gruß!"}
    told = client.post("/tokenize", json={**body, "return_token_strs": True}).json()
    check_body(told, Tokenized)
    assert told["count"] == len(told["tokens"]) == 6 and told["max_model_len"] == 512
    assert told["token_strs"][:3] == ["G", "r", "u"]
    back = client.post("/detokenize", json={"model": "fake-model", "tokens": told["tokens"]})
    check_body(back.json(), Detokenized)
    assert back.json() == {"prompt": "Gruß!"}


def test_tokens_of_a_conversation_are_those_of_its_answer(client: Client) -> None:
    client.chat()
    body = {"model": "fake-model", "messages": CHAT["messages"]}
    told = client.post("/tokenize", json=body).json()
    assert told["tokens"] == client.engine.submitted[0].prompt_ids
    assert told["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "Hi", "messages": CHAT["messages"]}, "prompt"),
        ("/tokenize", {"prompt": "Hi", "add_generation_prompt": True}, "add_generation_prompt"),
        (
            "/tokenize",
            {"messages": CHAT["messages"], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"messages": [{**CHAT["messages"][0], "name": "Ada"}]}, "messages[0].name"),
        ("/detokenize", {"tokens": [5, 99999]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [5] * 513}, "tokens"),  # the context has 512
    ],
)
def test_wrong_token_requests_name_the_field(
    client: Client, path: str, change: dict[str, Any], field: str
) -> None:
    response = client.post(path, json={"model": "fake-model", **change})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(field)


def test_many_tokens_are_read_and_written_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, threads = Client(FakeAsyncEngine(max_model_len=32768), ServerSettings()), []

    def write(body: object) -> bytes:
        threads.append(threading.current_thread())
        return write_json(body)

    monkeypatch.setattr(tokenising, "write_json", write)
    ids = [5, 6] * 8192  # a body of more than bodies.LARGE bytes
    back = client.post("/detokenize", json={"model": "fake-model", "tokens": ids}).json()
    told = client.post("/tokenize", json={"prompt": back["prompt"], "return_token_strs": True})
    assert told.json()["tokens"] == ids and "".join(told.json()["token_strs"]) == back["prompt"]
    assert len(threads) == 2 and threading.main_thread() not in threads


def test_tokens_need_the_key() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(api_keys=("secret",)))
    for path in ("/tokenize", "/detokenize"):
        assert client.post(path, json={"model": "fake-model"}).status_code == 401


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/embeddings", "no embeddings"),
        ("/v1/rerank", "reranks nothing"),
        ("/api/chat", "not Ollama's"),
        ("/v1/audio/speech", "no audio"),
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/v1/chat", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completions/", "did you mean /v1/chat/completions?"),
        ("/v1/complete", "did you mean /v1/completions?"),
    ],
)
def test_an_unknown_path_says_what_is_near(client: Client, path: str, said: str) -> None:
    response = client.post(path, json={})
    error = response.json()["error"]
    assert response.status_code == 404 and error["code"] == "unknown_path"
    assert path in error["message"] and said in error["message"]


def test_a_path_near_nothing_and_a_wrong_method(client: Client) -> None:
    error = client.get("/favicon").json()["error"]
    assert error["message"] == "no path '/favicon' here"
    response = client.get("/v1/completions")
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert response.json()["error"]["message"] == "'/v1/completions' takes POST, not GET"
