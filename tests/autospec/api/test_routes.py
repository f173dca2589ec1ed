"""The paths below /v1/autospec: rights, bad input, and serving that goes on without a store."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec.api import autospec_extension, routes
from paceline.autospec.api.answers import AutospecOverview, DrafterChange
from paceline.autospec.store import DrafterStore, VersionState, database
from paceline.server.settings import ServerSettings
from tests.autospec.loop.worlds import CHAT, ME, SHOP, World
from tests.autospec.store.stores import drafter_folder, store_with
from tests.server.conftest import Client, check_body
from tests.server.fake import FakeAsyncEngine

ADMIN = {"Authorization": "Bearer admin-key"}
Serve = Callable[..., Client]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Makes a client of a server with the store in `tmp_path`."""

    def serve(traces: Path | None = None, **settings: Any) -> Client:
        options = ServerSettings(**{"admin_key": "admin-key", **settings})
        extension = autospec_extension(tmp_path / "store", traces)
        return Client(FakeAsyncEngine(), options, extension)

    return serve


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A store with one version live, one that was live before, and one in training."""
    with store_with(tmp_path / "store", old="live", new="trained", made="registered") as store:
        store.promote("new", ME, VersionState.LIVE)
        yield tmp_path / "store"


def serves(client: Client) -> bool:
    return client.chat().status_code == 200


def refused(client: Client, path: str, status: int, **body: Any) -> str:
    """Return the message of a refusal, which has a field."""
    answer = client.post(f"/v1/autospec/{path}", json=body, headers=ADMIN)
    error = answer.json()["error"]
    assert answer.status_code == status and error["param"], answer.text
    return str(error["message"])


def test_reading_needs_the_right_that_live_has(serve: Serve, folder: Path) -> None:
    client = serve(api_keys=("secret",))
    for path in ("/ui/live", "/v1/autospec"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
    assert serve().get("/v1/autospec").status_code == 200


def test_the_answer_has_the_form_that_the_schema_says(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.live("base")
    world.push("pushed")
    world.history(days=8)
    world.turn()
    world.turn()
    extension = autospec_extension(tmp_path / "store", tmp_path / "traces")
    client = Client(FakeAsyncEngine(), ServerSettings(), extension)
    for by in ("minute", "hour", "day"):
        answer = client.get(f"/v1/autospec?by={by}").json()
        check_body(answer, AutospecOverview)
        assert answer["by"] == by and answer["traces"]["state"] == "read"
        assert {entry["cohort"] for entry in answer["cohorts"]} == {"", SHOP, CHAT}
        assert answer["cohorts"][1]["curve"]["al"] or by == "minute"
    assert "/v1/autospec/promote" in client.get("/openapi.json").json()["paths"]
    world.close()


def test_a_span_that_is_none_is_refused(serve: Serve, folder: Path) -> None:
    answer = serve().get("/v1/autospec?by=week")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "by: got 'week'; expected one of minute, hour, day"


@pytest.mark.parametrize("path", ["promote", "rollback"])
def test_changes_need_the_admin_key(serve: Serve, folder: Path, path: str) -> None:
    body = {"name": "old"}
    without = serve(admin_key=None).post(f"/v1/autospec/{path}", json=body, headers=ADMIN)
    assert without.status_code == 403 and "--admin-key" in without.json()["error"]["message"]
    client = serve(api_keys=("secret",))
    for headers in ({}, {"Authorization": "Bearer secret"}, {"Authorization": "Bearer wrong"}):
        answer = client.post(f"/v1/autospec/{path}", json=body, headers=headers)
        assert answer.status_code == 401
        assert "the admin key is needed" in answer.json()["error"]["message"]
    with DrafterStore(folder) as store:
        assert store.live() == {"": "new"}


def test_a_promotion_and_a_rollback_are_kept_with_their_reasons(
    serve: Serve, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with DrafterStore(folder) as store:
        store.register("next", ME, spec="suffix")
    client = serve()
    caplog.set_level(logging.INFO, "paceline")
    body = {"name": "next", "to": "live", "cohort": SHOP, "reason": "it is better"}
    answer = client.post("/v1/autospec/promote", json=body, headers=ADMIN)
    assert answer.status_code == 200, answer.text
    check_body(answer.json(), DrafterChange)
    assert answer.json() == {"cohort": SHOP, "live": "next", "retired": [], "loop": None}
    assert f"next is live for {SHOP}" in caplog.text
    shown = {entry["cohort"]: entry for entry in client.get("/v1/autospec").json()["cohorts"]}
    assert shown[SHOP]["live"] == "next", "the answer is new"
    body = {"reason": "it was not", "name": "old"}
    answer = client.post("/v1/autospec/rollback", json=body, headers=ADMIN)
    assert answer.json()["live"] == "old" and answer.json()["retired"] == ["new"]
    with DrafterStore(folder) as store:
        assert store.live() == {"": "old", SHOP: "next"}
        promoted, back = store.history("next")[-1], store.history("old")[-1]
    assert (promoted.reason, back.reason) == ("it is better", "it was not")
    assert promoted.actor == "admin key from 127.0.0.1"


def test_without_a_goal_the_next_state_is_taken(serve: Serve, folder: Path) -> None:
    with DrafterStore(folder) as store:
        store.register("next", ME, spec="suffix")
        store.add_score("next", "", 2.0, 1.9, 2.1, 10, "held out")
    client = serve()
    answer = client.post("/v1/autospec/promote", json={"name": "next"}, headers=ADMIN)
    assert answer.json() == {"cohort": None, "live": None, "retired": [], "loop": None}
    states = {v["name"]: v["state"] for v in client.get("/v1/autospec").json()["versions"]}
    assert states["next"] == "scored"


def test_bad_input_names_the_field_and_changes_nothing(serve: Serve, folder: Path) -> None:
    client = serve()
    assert "did you mean made?" in refused(client, "promote", 400, name="maed")
    assert "to" in refused(client, "promote", 400, name="new", to="retired")
    assert "model|app|language|region" in refused(
        client, "promote", 400, name="new", to="live", cohort="shop"
    )
    assert "made is registered" in refused(client, "promote", 400, name="made", to="live")
    assert "version" in refused(client, "promote", 400, name="new", version="new")
    assert "name" in refused(client, "promote", 400, reason="because")
    assert "reason" in refused(client, "promote", 400, name="new", reason="x" * 501)
    assert "nothing to go back to" in refused(client, "rollback", 400, cohort=SHOP)
    assert "old, which a rollback would bring back now" in refused(
        client, "rollback", 400, name="new"
    )
    with DrafterStore(folder) as store:
        assert store.live() == {"": "new"} and len(store.history()) == 6


def test_a_version_whose_files_changed_is_not_promoted(serve: Serve, folder: Path) -> None:
    with DrafterStore(folder) as store:
        spec = f"hybrid:{drafter_folder(folder.parent / 'drafter')}"
        version = store.register("net", ME, spec=spec)
        weights = store.folders(version)["network"] / "model.safetensors"
    weights.chmod(0o600)
    weights.write_bytes(b"others")
    answer = serve().post("/v1/autospec/promote", json={"name": "net", "to": "live"}, headers=ADMIN)
    assert answer.status_code == 409 and "version net" in answer.json()["error"]["message"]


def test_without_a_store_serving_goes_on(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    for answer in (
        client.get("/v1/autospec"),
        client.post("/v1/autospec/promote", json={"name": "a"}, headers=ADMIN),
    ):
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "no_store"
        assert "`paceline drafters add`" in answer.json()["error"]["message"]
    assert serves(client)
    with store_with(tmp_path / "store", base="live"):
        assert client.get("/v1/autospec").json()["versions"][0]["name"] == "base"
    shutil.rmtree(tmp_path / "store")
    client.post("/v1/autospec/rollback", json={}, headers=ADMIN)  # forgets what was read
    assert client.get("/v1/autospec").json()["error"]["code"] == "no_store"
    assert serves(client)


def test_a_store_that_is_locked_or_slow_is_said_and_serving_goes_on(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    with DrafterStore(folder) as store:
        store.register("made-2", ME, spec="suffix")
    client = serve()
    lock = sqlite3.connect(folder / database.FILE, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    body = {"name": "made-2", "to": "canary"}
    assert client.get("/v1/autospec").status_code == 200, "readers wait for no writer"
    answer = client.post("/v1/autospec/rollback", json={}, headers=ADMIN)
    assert answer.status_code == 503 and "locked" in answer.json()["error"]["message"]
    monkeypatch.setattr(routes, "CHANGE_PATIENCE", 0.05)
    answer = client.post("/v1/autospec/promote", json=body, headers=ADMIN)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "store_slow"
    again = client.post("/v1/autospec/promote", json=body, headers=ADMIN)
    assert again.status_code == 409 and again.json()["error"]["code"] == "change_under_way"
    assert serves(client)
    lock.execute("ROLLBACK")
    lock.close()


def test_slow_traces_hold_nobody_up(
    serve: Serve, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "TRACES_PATIENCE", 0.05)
    slow = routes.TracedTraffic.read_on

    def late(self: Any, *args: Any) -> Any:
        routes.time.sleep(0.4)
        return slow(self, *args)

    monkeypatch.setattr(routes.TracedTraffic, "read_on", late)
    client = serve(tmp_path / "traces")
    assert client.get("/v1/autospec").json()["traces"]["state"] == "reading"
    routes.time.sleep(0.5)
    assert client.get("/v1/autospec").json()["traces"]["state"] == "read"


def test_traces_that_cannot_be_read_leave_the_rest(
    serve: Serve, folder: Path, tmp_path: Path
) -> None:
    client = serve(tmp_path / "traces")
    assert client.get("/v1/autospec").json()["traces"]["state"] == "read", "none are there yet"
    day = routes.time.strftime("%Y-%m-%d", routes.time.gmtime())
    part = tmp_path / "traces" / "requests" / f"day={day}" / "app=none"
    part.mkdir(parents=True)
    (part / "part-1.parquet").write_bytes(b"no parquet")
    client = serve(tmp_path / "traces")
    answer = client.get("/v1/autospec").json()
    assert answer["traces"]["state"] == "failed" and "part-1" in answer["traces"]["message"]
    assert answer["versions"]


def test_the_page_has_the_tab_where_the_server_has_a_store(serve: Serve, folder: Path) -> None:
    def tab(client: Client) -> Any:
        tabs = client.get("/ui/state").json()["tabs"]
        return next(tab for tab in tabs if tab["name"] == "autospec")

    assert tab(serve())["available"]
    plain = Client(FakeAsyncEngine(), ServerSettings())
    assert "--autospec STORE" in tab(plain)["command"]
    assert plain.get("/v1/autospec").status_code == 404
