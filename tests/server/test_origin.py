"""Pages of other sites, which a visitor's browser runs, can neither read nor start anything."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from paceline.server.settings import ServerSettings

from .conftest import TEXT, Client, listening, page_server
from .fake import FakeAsyncEngine
from .raw import RawClient

REBOUND = "evil.example:8000"  # a name that its owner has led to 127.0.0.1
PATHS = ("/", "/health", "/metrics", "/v1/models", "/ui/live", "/ui/serving", "/ui/state")
ACCEPTANCE = {"kind": "dflash", "name": "DFlash", "cost": 0.1, "block": 15,
              "acceptance": {"alpha": 0.8}}  # fmt: skip
SCENARIO = {"model": "Qwen3-8B", "hardware": "B200", "drafters": [ACCEPTANCE]}


def client_of(**settings: Any) -> Client:
    return Client(FakeAsyncEngine(), ServerSettings(**settings))


@pytest.mark.parametrize("path", PATHS)
def test_a_rebound_name_reads_nothing(client: Client, path: str) -> None:
    refused = client.get(path, headers={"Host": REBOUND})
    assert refused.status_code == 421
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("Host", "host_not_allowed")
    assert "--allow-host evil.example" in error["message"]


def test_a_rebound_name_generates_nothing(client: Client) -> None:
    refused = client.post("/v1/completions", json=TEXT, headers={"Host": REBOUND})
    assert refused.status_code == 421 and not client.engine.submitted


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:80", "localhost."],
)
def test_this_machine_is_answered(client: Client, host: str) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["localhost.evil.example", "127.0.0.1.evil.example", "evil.example#localhost", "[::2]",
     "localhost:80:80", "evil.example@localhost", "", " ", "http://localhost", "[::1", "0.0.0.0"],
)  # fmt: skip
def test_what_only_looks_like_this_machine_is_refused(client: Client, host: str) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code in (400, 421)


def test_the_bound_host_and_allowed_names_are_answered() -> None:
    client = client_of(host="127.0.0.7", allow_hosts=("Paceline.example", "fd00::7"))
    for host in ("127.0.0.7:80", "paceline.example", "PACELINE.example:443", "[fd00::7]:80"):
        assert client.get("/v1/models", headers={"Host": host}).status_code == 200
    assert client.get("/v1/models", headers={"Host": REBOUND}).status_code == 421


def test_who_has_a_key_or_another_interface_is_reached_by_any_name() -> None:
    open_to_all = client_of(host="0.0.0.0")
    assert open_to_all.get("/v1/models", headers={"Host": REBOUND}).status_code == 200
    keyed = client_of(api_keys=("secret",))
    headers = {"Host": REBOUND, "Authorization": "Bearer secret"}
    assert keyed.get("/v1/models", headers=headers).status_code == 200
    assert keyed.get("/v1/models", headers={"Host": REBOUND}).status_code == 401


def test_names_that_are_given_hold_everywhere() -> None:
    client = client_of(host="0.0.0.0", allow_hosts=("paceline.example",))
    assert client.get("/v1/models", headers={"Host": REBOUND}).status_code == 421
    assert client.get("/v1/models", headers={"Host": "paceline.example"}).status_code == 200


def test_host_is_sent_exactly_once() -> None:
    with listening(FakeAsyncEngine()) as server:
        for lines, status in (
            ("", 400),
            ("Host: localhost\r\nHost: localhost\r\n", 400),
            ("Host: localhost\r\nHost: evil.example\r\n", 400),
            ("Host: localhost\r\n", 200),
        ):
            with RawClient(server.url) as client:
                client.send(f"GET /health HTTP/1.1\r\n{lines}\r\n".encode())
                answer = client.answer()
                assert answer.status == status
                assert status == 200 or answer.error["code"] == "bad_host"
        with RawClient(server.url) as client:
            client.send(b"GET /health HTTP/1.0\r\n\r\n")  # some load balancers ask like this
            assert client.answer().status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # no browser
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://through.a.proxy"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://127.0.0.1"}, 200),
        ({"Origin": "http://127.0.0.1:80"}, 200),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://[bad"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
    ],
)
def test_only_the_servers_own_page_posts_to_its_data(
    client: Client, headers: dict[str, str], status: int
) -> None:
    answer = client.post("/ui/predict", json=SCENARIO, headers=headers)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.json()["error"]["param"] in ("Content-Type", "Origin", "Sec-Fetch-Site")


def test_a_name_of_a_proxy_may_post() -> None:
    client = client_of(allow_hosts=("paceline.example",))
    headers = {"Origin": "http://Paceline.example"}
    assert client.post("/ui/predict", json=SCENARIO, headers=headers).status_code == 200


def test_the_key_is_asked_for_first() -> None:
    client = client_of(api_keys=("secret",))
    answer = client.post("/ui/predict", content="{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 401
    headers = {"Authorization": "Bearer secret", "Origin": "http://evil.example"}
    assert client.post("/ui/predict", json=SCENARIO, headers=headers).status_code == 403


def test_the_page_server_checks_as_well() -> None:
    with page_server() as url, httpx.Client(base_url=url, trust_env=False) as http:
        assert http.post("/ui/predict", json=SCENARIO).status_code == 200
        assert http.get("/", headers={"Host": REBOUND}).status_code == 421
        foreign = {"Origin": "http://evil.example"}
        assert http.post("/ui/predict", json=SCENARIO, headers=foreign).status_code == 403
        plain = {"Content-Type": "text/plain"}
        assert http.post("/ui/timing", content="{}", headers=plain).status_code == 415
