"""Bad requests get a 4xx that names the field, and harm nobody."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.server.app import create_app
from paceline.server.settings import ServerSettings

from .conftest import CHAT, TEXT, Client, in_process
from .fake import FakeAsyncEngine

BAD_CHAT: list[tuple[str, Any, str]] = [
    ("temperature", -1, "temperature"),
    ("temperature", "hot", "temperature"),
    ("temperature", 0.00001, "temperature"),
    ("temperature", True, "temperature"),
    ("top_p", 0, "top_p"),
    ("top_k", 1.5, "top_k"),
    ("top_k", 1e300, "top_k"),
    ("n", 0, "n"),
    ("n", 129, "n"),
    ("seed", 2**64, "seed"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", 513, "max_tokens"),
    ("min_tokens", 9, "min_tokens"),
    ("stop", ["a", ""], "stop"),
    ("stop", [1], "stop[0]"),
    ("stop_token_ids", [-1], "stop_token_ids[0]"),
    ("stop_token_ids", [100_000], "stop_token_ids"),
    ("logit_bias", {"x": 1}, "logit_bias"),
    ("logit_bias", {"9" * 5000: 1}, "logit_bias"),
    ("logit_bias", {"1_0": 1}, "logit_bias"),
    ("logit_bias", {"1": 101}, "logit_bias"),
    ("logit_bias", {"100000": 1}, "logit_bias"),
    ("messages", [], "messages"),
    ("messages", "Hi", "messages"),
    ("messages", [{"role": "user"}], "messages[0].content"),
    ("messages", [{"role": "user", "content": None}], "messages[0].content"),
    ("messages", [{"role": "king", "content": "Hi"}], "messages[0].role"),
    ("messages", [{"role": "user", "content": "refuse"}], "messages"),
    ("messages", [{"role": "user", "content": "Hi", "name": "Ann"}], "messages[0].name"),
    ("messages", [{"role": "user", "content": "Hi", "mood": 1}], "messages[0].mood"),
    ("messages", [{"role": "user", "content": "Hi", "reasoning": "x"}], "messages[0].reasoning"),
    (
        "messages",
        [{"role": "assistant", "content": "Hi", "reasoning": "x", "reasoning_content": "y"}],
        "messages[0].reasoning",
    ),
    ("messages", [{"role": "user", "content": "\ud800"}], "messages[0].content"),
    (
        "messages",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content[0].type",
    ),
    (
        "messages",
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
        "messages[0].tool_calls[0].type",
    ),
    ("tools", {}, "tools"),
    ("tools", "x", "tools"),
    ("tools", [{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
    ("tool_choice", 5, "tool_choice"),
    ("response_format", {}, "response_format.type"),
    ("structured_outputs", {"choice": []}, "structured_outputs.choice"),
    ("tool_choice", "auto", "tool_choice"),
    ("functions", [{"name": "f"}], "functions"),
    ("response_format", {"type": "grammar"}, "response_format.type"),
    ("audio", {"voice": "x"}, "audio"),
    ("modalities", ["text", "audio"], "modalities[1]"),
    ("reasoning_effort", "high", "reasoning_effort"),
    ("store", "yes", "store"),
    ("service_tier", "best", "service_tier"),
    ("verbosity", "loud", "verbosity"),
    ("prediction", {"type": "guess"}, "prediction.type"),
    ("typical_p", 0.9, "typical_p"),
    ("mirostat", False, "mirostat"),
    ("logprobs", 3, "logprobs"),
    ("top_logprobs", 2, "top_logprobs"),
    ("stream_options", {"include_usage": True}, "stream_options"),
    ("speculative", "on", "speculative"),
    ("speculative", {"drafter": "eagle"}, "speculative.drafter"),
    ("speculative", {"max_draft_len": 5}, "speculative.max_draft_len"),
    ("speculative", {"gamma": 5}, "speculative.gamma"),
    ("chat_template_kwargs", {"tokenize": True}, "chat_template_kwargs"),
    ("chat_template_kwargs", {"mood": 1}, "chat_template_kwargs"),
    ("chat_template_kwargs", {"enable_thinking": False}, "chat_template_kwargs.enable_thinking"),
    ("skip_special_tokens", 1, "skip_special_tokens"),
    ("max_completion_tokens", 9, "max_tokens"),
    ("model", 5, "model"),
    ("temprature", 1, "temprature"),
]
BAD_TEXT: list[tuple[str, Any, str]] = [
    ("prompt", "", "prompt"),
    ("prompt", [], "prompt"),
    ("prompt", [1, "a"], "prompt"),
    ("prompt", [[1], []], "prompt"),
    ("prompt", [100_000], "prompt"),
    ("prompt", {"text": "Hi"}, "prompt"),
    ("prompt", "\ud800", "prompt"),
    ("prompt", ["Hi"] * 129, "prompt"),
    ("prompt", "Hi" * 300, "prompt"),
    ("best_of", 2, "best_of"),
    ("suffix", "!", "suffix"),
    ("logprobs", 21, "logprobs"),
    ("logprobs", True, "logprobs"),
    ("messages", CHAT["messages"], "messages"),
]


PYDANTIC = re.compile(
    r"Input|instance of|dictionary|\btags?\b|(List|String) should|valid (string|list|number)"
)


def check(response: Any, field: str | None, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == field
    if field is not None:
        assert error["message"].startswith(field)
    assert not PYDANTIC.search(error["message"])
    return error


@pytest.mark.parametrize(("field", "value", "named"), BAD_CHAT)
def test_chat_names_the_field(client: Client, field: str, value: Any, named: str) -> None:
    check(client.chat(**{field: value}), named)
    assert not client.engine.submitted


@pytest.mark.parametrize(("field", "value", "named"), BAD_TEXT)
def test_completions_names_the_field(client: Client, field: str, value: Any, named: str) -> None:
    check(client.complete(**{field: value}), named)
    assert client.engine.stats().running == 0


def test_messages_say_what_was_sent_and_what_is_right(client: Client) -> None:
    error = check(client.chat(temperature="hot"), "temperature")
    assert error["type"] == "invalid_request_error"
    assert error["message"] == "temperature: got 'hot'; expected a number"
    error = check(client.chat(max_token=5), "max_token")
    assert error["message"] == "max_token: unknown field; did you mean max_tokens?"
    messages = [{"role": "user", "content": "Hi", "name": "text"}]
    error = check(client.chat(messages=messages), "messages[0].name")
    assert "does not read `name`" in error["message"]
    options = {"continuous_usage_stats": True}
    field = "stream_options.continuous_usage_stats"
    error = check(client.chat(stream=True, stream_options=options), field)
    assert "include_usage" in error["message"]
    error = check(client.chat(logit_bias={"9" * 5000: 1}), "logit_bias")
    assert "999..." in error["message"] and len(error["message"]) < 200
    for field, value in {"functions": [{}], "audio": {"voice": "x"}}.items():
        error = check(client.chat(**{field: value}), field)
        assert error["message"] == f"{field}: this server does not support it; leave it out"


def test_missing_fields(client: Client) -> None:
    check(client.post("/v1/chat/completions", json={"model": "fake-model"}), "messages")
    check(client.post("/v1/completions", json={"model": "fake-model"}), "prompt")


@pytest.mark.parametrize("field", ["messages", "max_completion_tokens"])
def test_context_length(client: Client, field: str) -> None:
    long = [{"role": "user", "content": "x" * 600}]
    change = {"messages": long} if field == "messages" else {"max_completion_tokens": 510}
    error = check(client.chat(**{"max_tokens": None, **change}), field)
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]


def test_unknown_model(client: Client) -> None:
    error = check(client.chat(model="gpt-5"), "model", 404)
    assert error["code"] == "model_not_found" and "fake-model" in error["message"]
    check(client.get("/v1/models/gpt-5"), "model", 404)


@pytest.mark.parametrize(
    "body", [b"{", b"", b"[]", b"5", b'"x"', b"\xff\xfe", b'{"n": ' + b"9" * 9999]
)
def test_a_body_that_is_no_json_object(client: Client, body: bytes) -> None:
    check(client.send("/v1/completions", body), None)


def test_nan_is_no_temperature(client: Client) -> None:
    body = b'{"model": "fake-model", "prompt": "Hi", "temperature": NaN}'
    check(client.send("/v1/completions", body), "temperature")


def test_unknown_route_and_method(client: Client) -> None:
    check(client.get("/v1/embeddings"), None, 404)
    check(client.get("/v1/completions"), None, 405)


def test_body_bound() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(max_body_bytes=1000))
    assert client.complete(prompt="x" * 100).status_code == 200
    check(client.complete(prompt="x" * 2000), None, 413)

    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 100

    check(client.send("/v1/completions", pieces()), None, 413)


def test_api_keys() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(api_keys=("one", "two")))
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}):
        response = client.post("/v1/chat/completions", json=CHAT, headers=headers)
        error = check(response, None, 401)
        assert error["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    for key in ("one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        assert client.get("/v1/models", headers=headers).status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 200


def test_queue_full_says_when_to_come_back() -> None:
    client = Client(FakeAsyncEngine(capacity=4), ServerSettings())
    client.engine.others = 2
    response = client.complete(n=3)
    error = check(response, None, 429)
    assert error["code"] == "queue_full" and response.headers["retry-after"] == "1"
    client.engine.others = 1
    assert client.complete(n=3).status_code == 200


@pytest.mark.parametrize(
    ("changes", "field", "most"),
    [
        ({"n": 5}, "n", "at most 4"),
        ({"n": 5, "prompt": ["a", "b"]}, "n", "at most 4"),
        ({"prompt": ["a"] * 5}, "prompt", "at most 4"),
        ({"n": 2, "prompt": ["a"] * 3}, "prompt", "at most 2 with n = 2"),
    ],
)
def test_what_can_never_fit_is_not_told_to_come_back(
    changes: dict[str, Any], field: str, most: str
) -> None:
    response = Client(FakeAsyncEngine(capacity=4), ServerSettings()).complete(**changes)
    assert most in check(response, field)["message"]
    assert "retry-after" not in response.headers


def test_a_batch_of_prompts_is_taken_whole_or_not_at_all() -> None:
    client = Client(FakeAsyncEngine(capacity=4), ServerSettings())
    client.engine.others = 2
    check(client.complete(prompt=["a", "b", "c"]), None, 429)
    assert not client.engine.submitted
    check(client.complete(prompt=["a", "b" * 600]), "prompt")
    assert client.engine.stats().running == 0 and len(client.engine.aborted) == 1


def test_a_refused_prompt_gives_its_place_back() -> None:
    client = Client(FakeAsyncEngine(capacity=1), ServerSettings())
    for bad in ("", "\ud800", "b" * 600):
        check(client.complete(prompt=bad), "prompt")
    assert client.complete().status_code == 200


def test_draining_and_dead_servers_answer_503(client: Client) -> None:
    client.engine.draining = True
    response = client.complete()
    check(response, None, 503)
    assert "retry-after" in response.headers
    client.engine.draining, client.engine.alive = False, False
    check(client.complete(), None, 503)


def test_an_engine_failure_is_a_500_that_tells_nothing_inner() -> None:
    client = Client(FakeAsyncEngine(fail=True), ServerSettings())
    error = check(client.chat(), None, 500)
    assert error["type"] == "server_error" and "boom" not in error["message"]


def test_a_bug_is_a_500_in_the_same_shape() -> None:
    engine = FakeAsyncEngine()
    engine.submit = lambda *_, **__: 1 / 0  # type: ignore[method-assign]
    check(Client(engine, ServerSettings()).chat(), None, 500)


def test_bad_requests_do_not_disturb_a_running_one() -> None:
    async def test() -> None:
        engine = FakeAsyncEngine(step=0.01)
        async with in_process(create_app(engine, ServerSettings())) as http:
            good = asyncio.create_task(
                http.post("/v1/completions", json={**TEXT, "max_tokens": 30})
            )
            await asyncio.sleep(0.02)
            for field, value, _ in BAD_TEXT:
                if "\ud800" not in str(value):
                    bad = await http.post("/v1/completions", json={**TEXT, field: value})
                    assert bad.status_code == 400
            assert (await good).json()["usage"]["completion_tokens"] == 30

    asyncio.run(asyncio.wait_for(test(), 20))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 70000),
        ("api_keys", ("",)),
        ("api_keys", ("abc", "key-1 def")),  # a key without a name has that of its place
        ("spec_metrics", "all"),
        ("share_answers", "sometimes"),
        ("steady_stream", 1.0),
        ("steady_stream", -5.0),
        ("steady_stream", float("nan")),
        ("drain_timeout", -1),
        ("max_body_bytes", 0),
        ("served_model_names", ("",)),
    ],
)
def test_settings_are_checked(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field):
        ServerSettings(**{field: value})
