"""A server with the API for drafters, in this process: it answers as `paceline serve` does."""

from __future__ import annotations

import json
from typing import Any

import httpx

from paceline.autospec.server_client import DrafterClient
from paceline.bench.load.address import ServerAddress

KEY = "admin-secret"
Json = dict[str, Any]


class FakeServer:
    """Holds drafters and routes. `busy` drafters draft for requests and so do not leave at once;
    `log` has each request that changed something."""

    def __init__(self, default: str | None = None) -> None:
        self.drafters: dict[str, Json] = {}
        self.routes: Json = {"default": default, "cohorts": [], "salt": "s"}
        self.busy: set[str] = set()
        self.log: list[str] = []
        self.fails: dict[str, tuple[int, str]] = {}  # by method: the answer in place of its own
        if default is not None:
            self.add(default, "suffix")

    def add(self, name: str, spec: str) -> None:
        self.drafters[name] = {
            "name": name, "version": "1", "spec": spec, "state": "live", "requests": 0,
            "weight_bytes": 0, "kv_bytes": 0,
        }  # fmt: skip

    def client(self, key: str | None = KEY) -> DrafterClient:
        """Return a client that asks this server."""
        address = ServerAddress.parse("http://127.0.0.1:8000")
        return DrafterClient(address, key, httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return refused(401, "the admin key is needed: Authorization: Bearer KEY")
        if request.method in self.fails:
            return refused(*self.fails[request.method])
        if request.method != "GET":
            self.log.append(f"{request.method} {request.url.path}")
        match request.method:
            case "GET":
                return self._shown()
            case "POST":
                return self._load(json.loads(request.content))
            case "PUT":
                return self._route(json.loads(request.content))
        return self._retire(request.url.path.rpartition("/")[2])

    def _shown(self) -> httpx.Response:
        parts = ("model", "app", "language", "region")
        rules = [
            {**rule, "match": {part: rule["match"].get(part) for part in parts}}
            for rule in self.routes["cohorts"]
        ]
        routes = {**self.routes, "cohorts": rules}
        shown = {"drafters": [*self.drafters.values()], "routes": routes, "takes_corpora": True}
        return httpx.Response(200, json=shown)

    def _load(self, body: Json) -> httpx.Response:
        if body["name"] in self.drafters:
            return refused(409, f"name: got {body['name']!r}; expected a name of its own")
        self.add(body["name"], body["spec"])
        return httpx.Response(201, json=self.drafters[body["name"]])

    def _route(self, body: Json) -> httpx.Response:
        named = {body["default"], *(name for rule in body["cohorts"] for name in rule["shares"])}
        if unknown := named - self.drafters.keys():
            return refused(400, f"default: got {unknown.pop()!r}; expected a drafter")
        assert all(abs(sum(rule["shares"].values()) - 1) < 1e-9 for rule in body["cohorts"])
        self.routes = body
        return self._shown()

    def _retire(self, name: str) -> httpx.Response:
        if name == self.routes["default"]:
            return refused(409, f"{name} is the default")
        if name not in self.drafters:
            return refused(404, f"no drafter {name}")
        if name in self.busy:
            self.drafters[name]["state"] = "retiring"
            return httpx.Response(202, json=self.drafters[name])
        return httpx.Response(200, json=self.drafters.pop(name))


def refused(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message}})
