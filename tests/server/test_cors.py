"""Which web pages may use the API: browsers are told, and nobody else is hindered."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from paceline.core import InvalidRequest
from paceline.server.settings import ServerSettings

from .conftest import TEXT, Client
from .fake import FakeAsyncEngine

CHAT_PAGE = "https://chat.example"
ASKED = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


def client_of(**settings: Any) -> Client:
    return Client(FakeAsyncEngine(), ServerSettings(**settings))


def ask(client: Client, origin: str, path: str = "/v1/chat/completions") -> httpx.Response:
    return client.request("OPTIONS", path, headers={"Origin": origin, **ASKED})


@pytest.mark.parametrize(
    ("allowed", "origin", "answer"),
    [
        (("localhost",), "http://localhost:3000", "http://localhost:3000"),
        (("localhost",), "https://127.0.0.1", "https://127.0.0.1"),
        (("localhost",), "http://[::1]:5173", "http://[::1]:5173"),
        (("localhost",), "http://localhost.evil.example", None),
        (("localhost",), "http://evil.example", None),
        (("localhost",), "null", None),
        (("localhost",), "http://[bad", None),
        (("localhost",), "localhost", None),
        ((CHAT_PAGE,), CHAT_PAGE, CHAT_PAGE),
        ((CHAT_PAGE,), "http://chat.example", None),
        ((CHAT_PAGE,), "http://localhost:3000", None),
        (("none",), "http://localhost:3000", None),
        (("none",), "none", None),
        (("*",), "http://evil.example", "*"),
        (("*",), "null", "*"),
    ],
)
def test_a_browser_is_told_before_and_after(
    allowed: tuple[str, ...], origin: str, answer: str | None
) -> None:
    client = client_of(allow_origins=allowed, api_keys=("secret",))
    preflight = ask(client, origin)  # a browser sends no key with it
    assert preflight.status_code == (204 if answer else 403)
    assert preflight.headers.get("access-control-allow-origin") == answer
    if answer:
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
    headers = {"Authorization": "Bearer secret", "Origin": origin}
    for body in (TEXT, {**TEXT, "stream": True}, {**TEXT, "temperature": -1}):
        sent = client.post("/v1/completions", json=body, headers=headers)
        assert sent.headers.get("access-control-allow-origin") == answer
        if answer:
            assert "x-request-id" in sent.headers["access-control-expose-headers"]
    refused = client.get("/v1/models", headers={"Origin": origin})
    assert refused.status_code == 401  # a page can read why
    assert refused.headers.get("access-control-allow-origin") == answer


def test_an_allowed_page_may_send_any_content_type() -> None:
    client = client_of(allow_origins=(CHAT_PAGE,))
    headers = {"Origin": CHAT_PAGE, "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    assert client.post("/v1/completions", content='{"prompt": "Hi"}', headers=headers).is_success


def test_the_pages_own_data_is_not_shared() -> None:
    client = client_of(allow_origins=("*",))
    answer = client.get("/ui/state", headers={"Origin": CHAT_PAGE})
    assert "access-control-allow-origin" not in answer.headers
    assert ask(client, CHAT_PAGE, "/ui/predict").status_code == 405


def test_who_sends_no_origin_gets_no_headers(client: Client) -> None:
    assert not [name for name in client.complete().headers if name.startswith("access-control")]
    assert client.request("OPTIONS", "/v1/models").status_code == 405


def test_a_rebound_name_is_refused_first(client: Client) -> None:
    headers = {"Host": "evil.example", "Origin": "http://localhost", **ASKED}
    assert client.request("OPTIONS", "/v1/completions", headers=headers).status_code == 421


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://a b", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidRequest, match="allow_origins"):
        ServerSettings(allow_origins=(origin,))
