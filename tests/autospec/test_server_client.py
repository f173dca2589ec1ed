"""A server is told what the store says, in steps that may be repeated."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from paceline.autospec import live_server
from paceline.autospec.server_client import (
    DrafterClient,
    DrafterRoutes,
    RouteRule,
    ServerRefused,
)
from paceline.autospec.store import VersionState
from paceline.bench.load.address import ServerAddress
from paceline.core import InvalidRequest
from tests.autospec.fake_server import FakeServer
from tests.autospec.store.stores import COHORT, ME, store_with

MATCH = {"model": "Qwen3-8B", "app": "chat", "language": "de", "region": "eu"}


def test_a_drafter_is_loaded_routed_to_and_retired() -> None:
    server = FakeServer("old")
    client = server.client()
    client.load("new", "ngram")
    routes = DrafterRoutes("new", (RouteRule({"app": "chat"}, {"old": 0.5, "new": 0.5}),), "x")
    client.set_routes(routes)
    told = client.drafters()
    assert told.drafters["new"].spec == "ngram" and told.routes == routes
    client.set_routes(routes.without("old"))
    assert client.drafters().routes.cohorts == (RouteRule({"app": "chat"}, {"new": 1.0}),)
    server.busy.add("old")
    assert not client.retire("old") and client.drafters().drafters["old"].state == "retiring"
    server.busy.clear()
    assert client.retire("old")


def test_routes_change_for_one_cohort_alone() -> None:
    routes = DrafterRoutes("a", (RouteRule({"app": "x"}, {"a": 0.9, "b": 0.1}),), "salt")
    changed = routes.serving("c", {"app": "y"}).serving("d", {"app": "x"}).serving("e", {})
    assert changed == DrafterRoutes(
        "e", (RouteRule({"app": "y"}, {"c": 1.0}), RouteRule({"app": "x"}, {"d": 1.0})), "salt"
    )
    assert changed.without_cohort({"app": "y"}).without_cohort({"app": "x"}).cohorts == ()
    assert routes.without("b").cohorts == (RouteRule({"app": "x"}, {"a": 1.0}),)
    assert changed.without("d").cohorts == (RouteRule({"app": "y"}, {"c": 1.0}),)


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (401, "the admin key is needed", "--admin-key or PACELINE_ADMIN_KEY"),
        (403, "start it with --admin-key", "403 from .*start it with --admin-key"),
        (404, "Not Found", "no API for drafters; it needs `paceline serve`"),
        (409, "spec: no room for it", "409 from .*no room for it"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, message: str, told: str) -> None:
    server = FakeServer()
    server.fails["POST"] = (status, message)
    with pytest.raises(ServerRefused, match=told) as caught:
        server.client().load("a", "suffix")
    assert caught.value.status == status


def test_a_wrong_key_is_told_with_the_right_option() -> None:
    with pytest.raises(
        ServerRefused, match=r"give the server's admin key with --admin-key"
    ) as told:
        FakeServer().client("wrong").drafters()
    assert "PACELINE_API_KEY" not in str(told.value) and "wrong" not in str(told.value)
    assert "admin-secret" not in repr(FakeServer().client())


def test_no_server_and_another_answer_are_told() -> None:
    with pytest.raises(ServerRefused, match=r"no server at http://127.0.0.1:9: "):
        DrafterClient.connect("http://127.0.0.1:9").drafters()
    with pytest.raises(InvalidRequest, match=r"url: got 'ftp://x'"):
        DrafterClient.connect("ftp://x")
    lacking = b'{"drafters": [], "routes": {"default": null, "cohorts": [], "salt": ""}}'
    for content in (b"<html>", b"{}", b'{"drafters": [{}], "routes": {}}', lacking):
        transport = httpx.MockTransport(
            lambda _, content=content: httpx.Response(200, content=content)
        )
        client = DrafterClient(ServerAddress.parse("http://x"), None, transport)
        with pytest.raises(ServerRefused, match=r"/v1/drafters: (the answer is no JSON|no )"):
            client.drafters()


def test_a_version_is_loaded_once(tmp_path: Path) -> None:
    server = FakeServer("old")
    with store_with(tmp_path / "store", a="live") as store:
        for _ in range(2):
            live_server.bring(server.client(), store, store.version("a"))
        assert server.log == ["POST /v1/drafters"]
        server.drafters["a"]["spec"] = "a=suffix"  # of a server that was started with it
        live_server.bring(server.client(), store, store.version("a"))
        assert server.log == ["POST /v1/drafters"]
        server.drafters["a"]["spec"] = "ngram"
        with pytest.raises(InvalidRequest, match=r"whose a is suffix; it has ngram"):
            live_server.bring(server.client(), store, store.version("a"))


def test_routing_again_changes_nothing(tmp_path: Path) -> None:
    server = FakeServer("old")
    server.add("a", "suffix")
    for _ in range(2):
        live_server.route(server.client(), COHORT, "a")
    assert server.log == ["PUT /v1/drafters/routes"]
    assert server.routes["cohorts"] == [{"match": MATCH, "shares": {"a": 1.0}}]
    live_server.route(server.client(), COHORT, None)
    assert server.routes["cohorts"] == [] and server.routes["salt"] == "s"


def test_what_the_store_has_retired_leaves_the_server(tmp_path: Path) -> None:
    server = FakeServer("default")
    for name in ("gone", "busy", "kept", "unknown"):
        server.add(name, "suffix")
    server.busy.add("busy")
    server.routes["cohorts"] = [{"match": {"app": "x"}, "shares": {"gone": 0.5, "kept": 0.5}}]
    states = {"gone": "retired", "busy": "retired", "default": "retired", "kept": "trained"}
    with store_with(tmp_path / "store", **states) as store:
        assert live_server.dismiss_retired(server.client(), store) == ["busy"]
        store.promote("kept", ME, VersionState.LIVE)
    assert server.drafters.keys() == {"default", "busy", "kept", "unknown"}
    assert server.routes["cohorts"] == [{"match": {"app": "x"}, "shares": {"kept": 1.0}}]
