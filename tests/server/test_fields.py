"""Fields that ask for nothing pass; what is not honoured is refused, or named with --lenient."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from paceline.server.extra_fields import MOST_EMPTY, MOST_IGNORED
from paceline.server.idle_values import EMPTY_VALUES, IDLE_VALUES
from paceline.server.protocol import ChatRequest
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
    ("functions", False),
    ("top_logprobs", 0),
    ("repeat_penalty", 1.0),
    *(("never_heard_of", value) for value in (None, *EMPTY_VALUES)),
    *((name, value) for name, value in IDLE_VALUES.items() if name not in ChatRequest.model_fields),
    ("messages", [{**CHAT["messages"][0], "cache_control": None, "mood": "", "tags": []}]),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": "Hi", "cited": False}]}]),
]


@pytest.mark.parametrize(("field", "value"), NO_EFFECT)
def test_what_asks_for_nothing_passes(client: Client, field: str, value: Any) -> None:
    plain = client.chat(seed=1).json()["choices"][0]["message"]
    answer = client.chat(seed=1, **{field: value})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"] == plain
    assert "x-paceline-ignored" not in answer.headers


@pytest.mark.parametrize(
    ("field", "idle"), [("add_special_tokens", True), ("separate_reasoning", False)]
)
def test_completions_have_exceptions_of_their_own(client: Client, field: str, idle: bool) -> None:
    """A text gets its special tokens, and is answered with all that the model writes."""
    assert client.complete(**{field: idle}).status_code == 200
    error = client.complete(**{field: not idle}).json()["error"]
    written = {True: "true", False: "false"}
    expected = f"got {written[not idle]}; expected {written[idle]}: this server supports no other"
    assert error["message"].startswith(f"{field}: {expected}")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("web_search_options", {}, "web_search_options: this server does not support it"),
        ("echo", True, "echo: unknown field; got true, expected false, null or no such field"),
        (
            "options",
            {"num_ctx": 4096},
            "options: unknown field; got {'num_ctx': 4096}, expected {}, null or no such field",
        ),
        ("mood", "good", "mood: unknown field; got 'good', expected \"\", null or no such field"),
        ("n_probs", 0, "n_probs: unknown field; got 0, expected null or no such field"),
        ("best_of", 2, "best_of: got 2; expected 1"),
        # the rule would let these pass
        ("guided_json", {}, "guided_json: got {}; expected null: this server supports no other"),
        ("format", {}, "format: got {}; expected '': this server supports no other value"),
        ("cache_prompt", False, "cache_prompt: got false; expected true"),
        ("think", False, "think: got false; expected null"),
        ("speculation", False, "speculation: unknown field; did you mean speculative?"),
        (
            "parallelToolCalls",
            False,
            "parallelToolCalls: unknown field; did you mean parallel_tool_calls?",
        ),
        ("speculative", {"enabled": False}, "speculative.enabled: unknown field"),
        ("messages", [{**CHAT["messages"][0], "mood": "good"}], "messages[0].mood: unknown field"),
    ],
)
def test_what_asks_for_something_is_refused(
    client: Client, field: str, value: Any, message: str
) -> None:
    answer = client.chat(**{field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


def test_only_idle_values_of_a_field_are_left_out_of_a_list(client: Client) -> None:
    said = [{"role": "user", "content": "Hi", "mood": mood} for mood in ("", "good", None)]
    assert client.chat(messages=said).json()["error"]["param"] == "messages[1].mood"


def test_unknown_fields_with_empty_values_are_bounded(client: Client) -> None:
    """Each of them is compared with the names of the exceptions, on the event loop."""
    empty = {f"field{n}": False for n in range(MOST_EMPTY)}
    assert client.chat(**empty).status_code == 200
    error = client.chat(**empty, one="").json()["error"]
    assert error["message"] == (
        f"one: got one more; expected at most {MOST_EMPTY} fields that this server does not know, "
        "unless they are null"
    )
    nulls = {f"field{n}": None for n in range(9 * MOST_EMPTY)}
    assert client.chat(**nulls).status_code == 200
    inner = [{"role": "user", "content": "Hi", f"field{n}": None} for n in range(MOST_IGNORED + 1)]
    error = client.chat(messages=inner).json()["error"]
    assert f"expected at most {MOST_IGNORED} fields" in error["message"]


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
        {"role": "assistant", "content": "Hi", "mood": "glad", "cache_control": None, "tag": ""},
    ]
    client = lenient()
    answer = client.chat(messages=messages, guided_json={"a": 1}, audio={"voice": "x"}, seed=1)
    assert answer.status_code == 200, answer.text
    named = answer.headers["x-paceline-ignored"].split(", ")
    assert set(named) == {
        "guided_json", "audio", "messages[].cache_control", "messages[].mood",
    }  # fmt: skip
    streamed = client.chat(stream=True, options={"num_ctx": 9})
    assert streamed.headers["x-paceline-ignored"] == "options"
    named = client.chat(logit_processors=None, store=True, echo=False, separate_reasoning=True)
    assert "x-paceline-ignored" not in named.headers
    named = client.chat(separate_reasoning=False, speculation=False)
    assert named.headers["x-paceline-ignored"] == "separate_reasoning, speculation"


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
