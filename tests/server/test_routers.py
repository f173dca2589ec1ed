"""What the routers of SGLang and vLLM send is answered as what their clients sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.core import Request
from paceline.server.settings import ServerSettings

from .conftest import Client, listening
from .fake import FakeAsyncEngine
from .routers import MESSAGES, REQUESTS, ROUTERS, Sent, Way, recorded, what_is_sent

CASES = [(way, name) for way in ROUTERS for name in REQUESTS]
ADDED = {"no_stop_trim", "separate_reasoning", "stream_reasoning", "return_hidden_states"}


@pytest.fixture
def client() -> Client:
    return Client(FakeAsyncEngine(max_model_len=4096), ServerSettings())


def asked_of_the_engine(client: Client, sent: Sent) -> list[Request]:
    """Send a body to the server; return what its engine has to do."""
    client.engine.submitted.clear()
    path, body = sent
    answer = client.send(path, json.dumps({"model": "fake-model", **body}))
    assert answer.status_code == 200, answer.text
    return list(client.engine.submitted)


@pytest.mark.parametrize(("way", "name"), CASES, ids=[f"{way.name} {name}" for way, name in CASES])
def test_a_router_s_body_asks_for_the_same(client: Client, way: Way, name: str) -> None:
    plain = asked_of_the_engine(client, REQUESTS[name])
    routed = asked_of_the_engine(client, recorded(way)[name])
    assert [r.prompt_ids for r in routed] == [r.prompt_ids for r in plain]
    assert [r.params for r in routed] == [r.params for r in plain]


@pytest.mark.parametrize("way", ROUTERS, ids=lambda way: way.name)
def test_recorded_chats_have_the_fields_that_routers_add(way: Way) -> None:
    _, body = recorded(way)["chat"]
    assert body.keys() >= ADDED


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("separate_reasoning", False, "true"),
        ("stream_reasoning", False, "true"),
        ("include_reasoning", False, "true"),
        ("return_hidden_states", True, "false"),
        ("no_stop_trim", True, "false"),
    ],
)
def test_what_a_router_adds_is_refused_where_it_asks_for_something(
    client: Client, field: str, value: Any, right: str
) -> None:
    path, body = recorded(ROUTERS[0])["chat"]
    answer = client.send(path, json.dumps({**body, field: value}))
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and message.startswith(f"{field}: ")
    assert f"got {str(value).lower()}" in message and f"expected {right}" in message


@pytest.mark.slow
@pytest.mark.parametrize("way", ROUTERS, ids=lambda way: way.name)
def test_routers_still_send_what_is_recorded(way: Way, tmp_path: Path) -> None:
    assert what_is_sent(way, tmp_path / "log") == recorded(way)


@pytest.mark.slow
@pytest.mark.parametrize("way", ROUTERS, ids=lambda way: way.name)
def test_a_router_needs_no_key_where_the_server_has_none(way: Way, tmp_path: Path) -> None:
    with (
        listening(FakeAsyncEngine()) as server,
        way.to(server.url, tmp_path / "log", key="") as url,
        httpx.Client(base_url=url, trust_env=False, timeout=20) as http,
    ):
        assert http.get("/v1/models").json()["data"][0]["id"] == "fake-model"
        body = {"model": "fake-model", "messages": MESSAGES}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
