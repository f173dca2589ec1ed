"""Whole answers: what OpenAI's clients and vLLM's users read from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.core import SamplingParams
from paceline.server.responses import ChatCompletion, Completion
from paceline.server.settings import ServerSettings

from .conftest import Client, check_body
from .fake import REPLY, FakeAsyncEngine
from .test_streaming import events


def test_chat_answer_has_openai_shape(client: Client) -> None:
    response = client.chat(max_tokens=5)
    body = response.json()
    assert response.status_code == 200
    check_body(body, ChatCompletion)
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": REPLY[:5], "refusal": None}
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert "token_ids" not in choice
    prompt = len(client.engine.submitted[0].prompt_ids)
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 5,
        "total_tokens": prompt + 5,
        "prompt_tokens_details": None,
    }


def test_chat_goes_through_the_template(client: Client) -> None:
    client.chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ],
        chat_template_kwargs={"think": "hard"},
    )
    prompt = client.engine.engine.tokenizer.decode(client.engine.submitted[0].prompt_ids)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        "<|im_start|>assistant\n<think>hard</think>"
    )


def test_add_generation_prompt_off(client: Client) -> None:
    client.chat(add_generation_prompt=False)
    prompt = client.engine.engine.tokenizer.decode(client.engine.submitted[0].prompt_ids)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", [[39, 72]]),
        (["Hi", "i"], [[39, 72], [72]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_every_kind_of_prompt(client: Client, prompt: object, expected: list[list[int]]) -> None:
    body = client.complete(prompt=prompt, max_tokens=4, n=2).json()
    check_body(body, Completion)
    asked = client.engine.submitted
    assert [request.prompt_ids for request in asked[::2]] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(expected)))
    assert all(choice["text"] == REPLY[:4] for choice in body["choices"])
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert body["usage"]["completion_tokens"] == 8 * len(expected)


def test_sampling_fields_arrive(client: Client) -> None:
    client.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "6": 2.5},
        max_tokens=None,
        max_completion_tokens=9,
        min_tokens=2,
        stop=["x", "yz"],
        stop_token_ids=[8],
        ignore_eos=True,
        n=2,
        seed=-3,
        logprobs=True,
        top_logprobs=2,
    )
    assert client.engine.submitted[0].params == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={5: -100, 6: 2.5},
        max_tokens=9,
        min_tokens=2,
        stop=("x", "yz"),
        stop_token_ids=(8,),
        ignore_eos=True,
        n=2,
        seed=-3,
        logprobs=2,
    )


def test_defaults_are_openais(client: Client) -> None:
    client.chat(max_tokens=None)
    client.post("/v1/completions", json={"model": "fake-model", "prompt": "Hi"})
    chat, text = client.engine.submitted
    assert chat.params == SamplingParams()
    assert text.params == SamplingParams(max_tokens=16)


def test_harmless_fields_are_accepted(client: Client) -> None:
    response = client.chat(
        user="me",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        functions=None,
        stop=None,
        logit_bias=None,
        stream=False,
        stream_options=None,
        skip_special_tokens=True,
    )
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("wish", "drafter", "longest"),
    [
        (None, "ngram", 4),
        ("off", None, 0),
        ({"drafter": "ngram", "max_draft_len": 2}, "ngram", 2),
        ({"max_draft_len": 0}, None, 0),
    ],
)
def test_speculative_field(client: Client, wish: object, drafter: str | None, longest: int) -> None:
    body = client.chat(speculative=wish, seed=5).json()
    request = client.engine.submitted[0]
    assert (request.drafter, request.max_draft_len) == (drafter, longest)
    metrics = body["metrics"]
    assert metrics["seed"] == 5 and metrics["ttft"] > 0 and metrics["tpot"] >= 0
    assert metrics["queue_time"] > 0 and metrics["e2e_latency"] >= metrics["ttft"]
    assert metrics["drafter"] == drafter
    assert (metrics["speculative_decoding"] is None) == (drafter is None)


def test_a_whole_number_may_be_written_with_a_point(client: Client) -> None:
    """JSON Schema, which the API's description is written in, counts 8.0 among the integers."""
    assert client.chat(max_tokens=8.0).json()["usage"]["completion_tokens"] == 8


def test_speculation_is_reported_under_vllms_names(client: Client) -> None:
    counts = client.chat(max_tokens=8).json()["metrics"]["speculative_decoding"]
    assert counts == {  # rounds of 3, 3 and 2 tokens
        "mean_acceptance_length": pytest.approx(8 / 3),
        "draft_acceptance_rate": pytest.approx(5 / 8),
        "acceptance_histogram": [0, 1, 2, 0, 0],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 8,
        "num_spec_tokens": 4,
    }


def test_spec_metrics_modes() -> None:
    def counts(mode: str) -> dict[str, object] | None:
        client = Client(FakeAsyncEngine(), ServerSettings(spec_metrics=mode))
        return client.chat().json()["metrics"]["speculative_decoding"]

    assert counts("none") is None
    detailed = counts("detailed")
    assert detailed is not None
    assert detailed["per_step_accepted"] == [2, 2, 1]
    assert detailed["per_step_drafted"] == [3, 3, 2]


def test_drafts_are_counted_by_the_part_that_made_them() -> None:
    client = Client(FakeAsyncEngine(part="suffix"), ServerSettings())
    body = client.complete(prompt=["a", "b"], max_tokens=8).json()
    check_body(body, Completion)
    assert body["metrics"]["speculative_decoding"]["parts"] == {
        "suffix": {"num_spec_steps": 6, "num_accepted_draft_tokens": 10, "num_draft_tokens": 16}
    }


def test_several_choices_sum_their_speculation() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(spec_metrics="detailed"))
    body = client.complete(prompt=["a", "b"], n=2, max_tokens=8).json()
    check_body(body, Completion)
    drafter = {"drafter", "drafter_version", "route"}
    assert set(body["metrics"]) == {"seed", *drafter, "speculative_decoding"}  # no times
    assert body["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": pytest.approx(8 / 3),
        "draft_acceptance_rate": pytest.approx(5 / 8),
        "acceptance_histogram": [0, 4, 8, 0, 0],
        "num_spec_steps": 12,
        "num_accepted_draft_tokens": 20,
        "num_draft_tokens": 32,
        "num_spec_tokens": 4,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_tells_its_seeds(client: Client, stream: bool) -> None:
    def seed(**options: Any) -> int | list[int]:
        if not stream:
            return client.complete(**options).json()["metrics"]["seed"]
        response = client.complete(stream=True, stream_options={"include_usage": True}, **options)
        last = response.text.split("\n\n")[-3]
        return json.loads(last.removeprefix("data: "))["metrics"]["seed"]

    assert seed(n=3) == client.engine.submitted[-1].seed
    drawn = seed(prompt=["a", "b"], n=2)
    assert drawn == [request.seed for request in client.engine.submitted[-4::2]]
    assert seed(prompt=["a", "b"], n=2, seed=5) == 5


def test_chat_logprobs(client: Client) -> None:
    choice = client.chat(max_tokens=8, logprobs=True, top_logprobs=1).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content) == REPLY.encode()[:8]
    first = content[0]
    assert first["token"] == "E" and first["bytes"] == [69] and first["logprob"] == -0.25
    assert len(first["top_logprobs"]) == 1
    half = content[7]  # the first byte of ß
    assert half["token"] == "bytes:\\xc3" and half["bytes"] == [0xC3]


def test_chat_logprobs_without_top(client: Client) -> None:
    content = client.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 8 and content[0]["top_logprobs"] == []


def test_completion_logprobs(client: Client) -> None:
    logprobs = client.complete(max_tokens=4, logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["E", "i", "n", " "]
    assert logprobs["token_logprobs"] == [-0.25] * 4
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["top_logprobs"][0] == {"!": -0.5, '"': -1.5, "E": -0.25}


def test_logprobs_with_ids_in_place_of_texts(client: Client) -> None:
    asked = {"return_tokens_as_token_ids": True, "return_token_ids": True, "max_tokens": 4}
    choice = client.complete(logprobs=2, **asked).json()["choices"][0]
    told, ids = choice["logprobs"], choice["token_ids"]
    assert told["tokens"] == [f"token_id:{token}" for token in ids]
    assert told["text_offset"] == [0, 1, 2, 3]  # in the text, which the labels do not change
    assert set(told["top_logprobs"][0]) == {"token_id:0", "token_id:1", f"token_id:{ids[0]}"}
    assert choice["text"] == "Ein "
    choice = client.chat(logprobs=True, top_logprobs=1, **asked).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{token}" for token in ids]
    assert content[0]["top_logprobs"][0]["token"].startswith("token_id:")
    assert bytes(byte for entry in content for byte in entry["bytes"]) == b"Ein "


@pytest.mark.parametrize("path", ["chat", "complete"])
def test_streamed_logprobs_with_ids_in_place_of_texts(client: Client, path: str) -> None:
    asked = {"return_tokens_as_token_ids": True, "return_token_ids": True, "stream": True}
    labels, ids = [], []
    logprobs: dict[str, Any] = {"logprobs": True} if path == "chat" else {"logprobs": 1}
    for chunk in events(getattr(client, path)(**logprobs, **asked)):
        for choice in chunk["choices"]:
            told = choice["logprobs"] or {}
            labels += told.get("tokens", [])
            labels += [entry["token"] for entry in told.get("content", [])]
            ids += choice.get("token_ids", [])
    assert ids and labels == [f"token_id:{token}" for token in ids]


def test_return_token_ids(client: Client) -> None:
    body = client.complete(prompt=[5, 6], max_tokens=3, return_token_ids=True).json()
    assert body["choices"][0]["prompt_token_ids"] == [5, 6]
    assert body["choices"][0]["token_ids"] == client.engine.submitted[0].output_ids
    body = client.chat(return_token_ids=True).json()
    assert body["prompt_token_ids"] == client.engine.submitted[1].prompt_ids
    assert body["choices"][0]["token_ids"] == client.engine.submitted[1].output_ids


def test_served_model_names() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(served_model_names=("org/one", "two")))
    models = client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["org/one", "two"]
    assert models["data"][0]["max_model_len"] == 512
    assert client.get("/v1/models/org/one").json()["id"] == "org/one"
    assert client.get("/server_info").json()["served_model_name"] == "org/one"
    assert client.chat(model="two").json()["model"] == "two"
    assert client.chat(model="fake-model").status_code == 404


def test_health_and_version(client: Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/version").json()["version"]
    client.engine.draining = True
    assert client.get("/health").status_code == 503
    client.engine.alive = False
    assert client.get("/health").json() == {"status": "dead"}
