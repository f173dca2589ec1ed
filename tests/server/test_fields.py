"""Fields that ask for nothing pass; what is not honoured is refused, or named with --lenient."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from paceline.server.extra_fields import ASKS_NOTHING, MOST_IGNORED
from paceline.server.settings import ServerSettings

from .conftest import CHAT, TEXT, Client, listening
from .fake import FakeAsyncEngine

NO_EFFECT: list[tuple[str, Any]] = [
    ("store", True),
    ("store", False),
    ("service_tier", "flex"),
    ("priority", 5),
    ("verbosity", "low"),
    ("prediction", {"type": "content", "content": "A guess."}),
    ("prediction", {"type": "content", "content": [{"type": "text", "text": "A guess."}]}),
    ("prompt_cache_retention", "24h"),
    ("metadata", {"trace": "1"}),
    ("user", "ann"),
    ("audio", {}),
    ("functions", []),
    ("logit_processors", None),
    ("top_logprobs", 0),
    ("best_of", 1),
    ("echo", False),
    ("add_special_tokens", False),
    ("mm_processor_kwargs", []),
    *ASKS_NOTHING.items(),
]


@pytest.mark.parametrize(("field", "value"), NO_EFFECT)
def test_what_asks_for_nothing_passes(client: Client, field: str, value: Any) -> None:
    plain = client.chat(seed=1).json()["choices"][0]["message"]
    answer = client.chat(seed=1, **{field: value})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"] == plain
    assert "x-paceline-ignored" not in answer.headers


def test_special_tokens_are_added_to_a_text_as_ever(client: Client) -> None:
    assert client.send("/v1/completions", json.dumps({**TEXT, "add_special_tokens": True}))
    answer = client.post("/v1/completions", json={**TEXT, "add_special_tokens": False})
    assert "add_special_tokens: got false; expected true" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("web_search_options", {}, "web_search_options: this server does not support it"),
        ("echo", True, "echo: got true; expected false: this server supports no other value"),
        ("options", {"num_ctx": 4096}, "options: got {'num_ctx': 4096}; expected {}"),
        ("best_of", 2, "best_of: got 2; expected 1"),
    ],
)
def test_what_asks_for_something_is_refused(
    client: Client, field: str, value: Any, message: str
) -> None:
    answer = client.chat(**{field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


def test_values_are_written_as_json_has_them(client: Client) -> None:
    answer = client.post("/v1/responses", json={"input": "Hi", "background": True})
    message = answer.json()["error"]["message"]
    assert message == "background: got true; expected false"


def test_a_neutral_field_with_another_value_says_what_would_be_right(client: Client) -> None:
    error = client.chat(repeat_penalty=1.1).json()["error"]
    assert error["message"].startswith("repeat_penalty: got 1.1; expected 1")


@pytest.mark.parametrize("model", [None, ""])
def test_the_model_defaults_to_the_served_one(client: Client, model: str | None) -> None:
    bodies = ({**CHAT, "model": model}, {k: v for k, v in CHAT.items() if k != "model"})
    for body in bodies:
        answer = client.send("/v1/chat/completions", json.dumps(body))
        assert answer.status_code == 200 and answer.json()["model"] == "fake-model"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", ""])
def test_json_is_read_whatever_its_content_type(client: Client, kind: str) -> None:
    headers = {"Content-Type": kind}
    answer = client.post("/v1/completions", content=json.dumps(TEXT), headers=headers)
    assert answer.status_code == 200, answer.text
    answer = client.post("/v1/completions", content="prompt=Hi", headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "bad_json"


@pytest.mark.parametrize(
    "page", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_page_of_another_site_starts_nothing_without_asking(
    client: Client, page: dict[str, str]
) -> None:
    headers = {"Content-Type": "text/plain", **page}
    answer = client.post("/v1/completions", content=json.dumps(TEXT), headers=headers)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "cross_site"
    assert not client.engine.submitted


def test_head_is_answered_without_a_body() -> None:
    with (
        listening(FakeAsyncEngine()) as server,
        httpx.Client(base_url=server.url, trust_env=False) as http,
    ):
        for path in ("/health", "/", "/health"):  # a body would spoil the next answer
            answer = http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")


def lenient() -> Client:
    return Client(FakeAsyncEngine(), ServerSettings(lenient=True))


def test_lenient_names_what_it_ignores() -> None:
    messages = [
        {"role": "user", "content": "Hi", "cache_control": {"type": "ephemeral"}},
        {"role": "assistant", "content": "Hi", "reasoning": "", "cache_control": None},
    ]
    client = lenient()
    answer = client.chat(messages=messages, guided_json={"a": 1}, audio={"voice": "x"}, seed=1)
    assert answer.status_code == 200, answer.text
    named = answer.headers["x-paceline-ignored"].split(", ")
    assert set(named) == {
        "guided_json", "audio", "messages[].cache_control", "messages[].reasoning",
    }  # fmt: skip
    streamed = client.chat(stream=True, options={"num_ctx": 9})
    assert streamed.headers["x-paceline-ignored"] == "options"
    assert "x-paceline-ignored" not in client.chat(logit_processors=None, store=True).headers


def test_lenient_still_refuses_wrong_values() -> None:
    client = lenient()
    assert client.chat(temperature="hot", mood=1).json()["error"]["param"] == "temperature"
    assert client.chat(response_format={"type": "x"}).json()["error"]["param"]
    many = {f"field{n}": 1 for n in range(MOST_IGNORED + 1)}
    assert client.chat(**many).status_code == 400


def test_a_name_cannot_add_a_header() -> None:
    answer = lenient().chat(**{"a\r\nx-evil: 1, é": 1})
    assert answer.status_code == 200 and "x-evil" not in answer.headers
    assert answer.headers["x-paceline-ignored"] == "a%0D%0Ax-evil%3A%201%2C%20%C3%A9"
