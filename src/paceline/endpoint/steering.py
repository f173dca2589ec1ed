"""The API of a running endpoint: the paths below /v1/drafters that our own server has, on a socket
in the endpoint's folder that only its owner can open. So autospec steers replicas as it steers a
server, and `paceline drafters --server unix:FOLDER/steer.sock` tells them of changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from typing import Any

from paceline.autospec.server_client import DRAFTERS, ROUTES, DrafterRoutes
from paceline.autospec.serving import FULL, DrafterRefused, ServingError, ServingFull
from paceline.core import InvalidRequest, PacelineError
from paceline.core.documents import Document
from paceline.endpoint.replicas import DrafterReplicas
from paceline.endpoint.unix_server import QuietHandler, UnixServer
from paceline.engine.routes import Routes

SOCKET = "steer.sock"  # in an endpoint's folder
LONGEST_BODY = 2**20
Json = dict[str, Any]


class ReplicaToLoad(Document):
    """A drafter and the name that routes have for it."""

    name: str
    spec: str


class ReplicaSteering:
    """Answers for the replicas of an endpoint until close()."""

    def __init__(self, replicas: DrafterReplicas) -> None:
        self._replicas = replicas
        self._server = UnixServer(replicas.folder.absolute() / SOCKET, _handler(self))

    def shown(self) -> Json:
        """Return all replicas and the routes. Of their memory an endpoint knows nothing."""
        nothing = {"version": None, "weight_bytes": 0, "kv_bytes": 0}
        drafters = [{**asdict(each), **nothing} for each in self._replicas.loaded().values()]
        return {
            "drafters": drafters,
            "routes": self._replicas.routes.as_json(),
            "takes_corpora": self._replicas.takes_corpora(),
        }

    def load(self, body: Json) -> Json:
        """Start a replica, and return when it can be routed to."""
        asked = ReplicaToLoad.read(body)
        self._replicas.load(asked.name, asked.spec)
        return {"name": asked.name, "spec": asked.spec}

    def route(self, body: Json) -> Json:
        """Send requests by other routes."""
        routes = Routes.read(body)
        self._replicas.route(DrafterRoutes.of(routes.model_dump()))
        return self.shown()

    def unload(self, name: str) -> Json:
        """End a replica when its last request has ended."""
        if name not in self._replicas.loaded():
            listed = ", ".join(self._replicas.loaded()) or "none: there is no replica"
            raise LookupError(str(InvalidRequest("name", name, f"one of: {listed}")))
        self._replicas.unload(name)
        return {"name": name}

    def close(self) -> None:
        self._server.close()


def _handler(steering: ReplicaSteering) -> type[BaseHTTPRequestHandler]:
    class SteeringHandler(QuietHandler):
        def do_GET(self) -> None:
            self._answer(DRAFTERS, 200, steering.shown)

        def do_POST(self) -> None:
            body = self._body()
            self._answer(DRAFTERS, 201, lambda: steering.load(body))

        def do_PUT(self) -> None:
            body = self._body()
            self._answer(ROUTES, 200, lambda: steering.route(body))

        def do_DELETE(self) -> None:
            name = self.path.removeprefix(f"{DRAFTERS}/")
            self._answer(self.path, 202, lambda: steering.unload(name))

        def _answer(self, path: str, status: int, act: Callable[[], Json]) -> None:
            try:
                if self.path != path:
                    raise LookupError(f"there is no {self.command} {self.path}")
                told = act()
            except (PacelineError, LookupError) as error:
                status, told = _status(error), {"error": {"message": str(error)}}
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _body(self) -> Json:
            size = int(self.headers.get("content-length", 0))
            self.close_connection = size > LONGEST_BODY
            try:
                body = json.loads(self.rfile.read(min(size, LONGEST_BODY)))
            except ValueError:
                body = None
            return body if isinstance(body, dict) else {}

    return SteeringHandler


def _status(error: Exception) -> int:
    """Return the HTTP status of a refusal, as our server has it."""
    match error:
        case ServingFull():
            return FULL
        case DrafterRefused() | InvalidRequest():
            return 400
        case LookupError():
            return 404
        case ServingError() if isinstance(error.__cause__, InvalidRequest):
            return 400
    return 503
