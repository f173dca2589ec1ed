"""Routes that other rooms add: they are guarded as the server's own are."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from fastapi.params import Depends
from fastapi.responses import JSONResponse, Response

from paceline.server.extension import ServerExtension
from paceline.server.settings import ServerSettings

from .conftest import Client
from .fake import FakeAsyncEngine

KEYS = {name: {"Authorization": f"Bearer {name}"} for name in ("admin", "secret")}


def add(app: FastAPI, key: list[Depends]) -> None:
    routes = APIRouter(dependencies=key)

    @routes.get("/v1/more")
    async def more() -> Response:
        return JSONResponse({"more": True})

    @routes.post("/v1/more/change")
    async def change() -> Response:
        return JSONResponse({"changed": True})

    app.include_router(routes)


def client(**settings: object) -> Client:
    extension = ServerExtension(add, "autospec", frozenset({"/v1/more/change"}))
    return Client(FakeAsyncEngine(), ServerSettings(**settings), extension)  # type: ignore[arg-type]


def test_a_path_needs_an_api_key_or_the_admin_key() -> None:
    guarded = client(api_keys=("secret",), admin_key="admin")
    assert guarded.get("/v1/more").status_code == 401
    assert guarded.get("/v1/more", headers=KEYS["secret"]).json() == {"more": True}
    for headers in ({}, KEYS["secret"]):
        assert guarded.post("/v1/more/change", json={}, headers=headers).status_code == 401
    answer = guarded.post("/v1/more/change", json={}, headers=KEYS["admin"])
    assert answer.json() == {"changed": True}
    assert client().get("/v1/more").status_code == 200, "an open server"
    assert client().post("/v1/more/change", json={}).status_code == 403, "nobody is admin"


def test_its_tab_is_there_and_its_paths_are_described() -> None:
    tabs = {tab["name"]: tab["available"] for tab in client().get("/ui/state").json()["tabs"]}
    assert tabs["autospec"]
    schema = client(api_keys=("secret",)).get("/openapi.json").json()
    assert schema["paths"]["/v1/more"]["get"]["security"]
    assert "did you mean /v1/more?" in client().get("/v1/mor").json()["error"]["message"]
