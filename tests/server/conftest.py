"""Clients of an app over the fake engine: in process, or over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import jsonschema
import pytest
import uvloop
from pydantic import TypeAdapter

from paceline.server.app import create_app
from paceline.server.extension import ServerExtension
from paceline.server.run import Server, UiServer
from paceline.server.settings import ServerSettings
from paceline.server.sockets import bind

from .fake import FakeAsyncEngine
from .routers import WAYS, Way

CHAT = {"model": "fake-model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
TEXT = {"model": "fake-model", "prompt": "Hi", "max_tokens": 8}
LONG_STREAM = {**TEXT, "max_tokens": 400, "ignore_eos": True, "stream": True}


class Client:
    """Synchronous calls into an app on a loop of its own, without sockets."""

    def __init__(self, engine: Any, settings: ServerSettings, *extensions: ServerExtension) -> None:
        self.engine, self._app = engine, create_app(engine, settings, extensions)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            async with in_process(self._app) as http:
                return await http.request(method, path, **options)

        return asyncio.run(asyncio.wait_for(go(), 20))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def send(self, path: str, body: Any) -> httpx.Response:
        """Posts JSON that is written already, and may be wrong."""
        return self.post(path, content=body, headers={"Content-Type": "application/json"})

    def chat(self, **changes: Any) -> httpx.Response:
        return self.send("/v1/chat/completions", json.dumps({**CHAT, **changes}))

    def complete(self, **changes: Any) -> httpx.Response:
        return self.send("/v1/completions", json.dumps({**TEXT, **changes}))


@asynccontextmanager
async def in_process(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http


@contextmanager
def listening(engine: Any, *extensions: ServerExtension, **settings: Any) -> Iterator[Server]:
    """A real server on a free loopback port, its event loop on a thread."""
    options = ServerSettings(port=0, **settings)
    ready = threading.Event()
    server = Server(engine, options, bind(options), lambda _: ready.set(), extensions)
    thread = threading.Thread(target=lambda: run_on_uvloop(server.run()))
    thread.start()
    try:
        assert ready.wait(20)
        yield server
    finally:
        server.stop()
        server.stop()  # whatever a test has left running
        thread.join(20)
    assert not thread.is_alive()


@contextmanager
def page_server(**settings: Any) -> Iterator[str]:
    """`paceline ui` on a free loopback port; gives its URL."""
    ready = threading.Event()
    server = UiServer(ServerSettings(port=0, **settings), lambda _: ready.set())
    thread = threading.Thread(target=lambda: run_on_uvloop(server.run()))
    thread.start()
    try:
        assert ready.wait(20)
        yield server.url
    finally:
        server.stop()
        thread.join(20)
    assert not thread.is_alive()


def healthy(url: str) -> bool:
    return httpx.get(url + "/health", trust_env=False, timeout=20).status_code == 200


def run_on_uvloop(main: Any) -> None:
    """Runs `main` on the loop that serves in production."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def eventually(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture(
    scope="module",
    params=[pytest.param(w, marks=[pytest.mark.slow] * bool(w.module)) for w in WAYS.values()],
    ids=list(WAYS),
)
def way(request: pytest.FixtureRequest) -> Way:
    """How clients reach the server: directly, or through a router."""
    chosen: Way = request.param
    return chosen


@pytest.fixture(scope="module")
def base_url(way: Way, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the API of a module's `server`, at the near end of the way."""
    with way.to(server.url, tmp_path_factory.mktemp("router") / "log") as url:
        yield f"{url}/v1"


@pytest.fixture
def client() -> Client:
    return Client(FakeAsyncEngine(), ServerSettings())


def check_body(body: Any, body_type: Any) -> None:
    """Hold a response body to its type: all members of the type, and no others."""
    schema = TypeAdapter(body_type).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = False
    jsonschema.validate(body, schema)
