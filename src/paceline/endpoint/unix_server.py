"""A small HTTP server on a Unix socket that only its owner can open."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest

LONGEST_SOCKET = 100  # bytes of a Unix socket's path; systems take 103 or 107


class UnixServer:
    """Serves from construction to close(), on threads of its own. What a process that was killed
    has left at `path` is replaced."""

    def __init__(self, path: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._server = _Server(str(path), handler)  # type: ignore[arg-type]  # a path
        os.chmod(path, 0o600)
        name = path.stem
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


class QuietHandler(BaseHTTPRequestHandler):
    """Base of what answers: kept connections, and no line of a log for each request."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(ConnectionError):  # whoever asked does not wait for the answer
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


def check_socket(path: Path) -> None:
    """Raise InvalidRequest (field `folder`) where a socket's path is too long for the system."""
    if len(str(path).encode()) > LONGEST_SOCKET:
        expected = f"a path of fewer than {LONGEST_SOCKET - len(path.name)} bytes"
        raise InvalidRequest("folder", str(path.parent), expected)


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_UNIX
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, _ = self.socket.accept()
        return connection, ("unix", 0)
