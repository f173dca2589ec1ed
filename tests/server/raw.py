"""A client that writes bytes to a socket, as no HTTP library would."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class RawClient:
    """One connection. Small buffers, so that what was sent has been taken by the server."""

    def __init__(self, url: str, *, receive_buffer: int | None = None) -> None:
        address = urlsplit(url)
        self.host = address.netloc
        self._socket = socket.socket()
        self._socket.settimeout(20)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        self._socket.connect((address.hostname, address.port))
        self._read = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def head(self, method: str, path: str, *lines: str) -> bytes:
        return "\r\n".join(
            [f"{method} {path} HTTP/1.1", f"Host: {self.host}", *lines, "", ""]
        ).encode()

    def post(self, path: str, body: Any) -> bytes:
        written = json.dumps(body).encode()
        lines = ("Content-Type: application/json", f"Content-Length: {len(written)}")
        return self.head("POST", path, *lines) + written

    def flood(self, pieces: Iterable[bytes]) -> int:
        """Sends until the server takes no more. Returns the bytes that were sent."""
        sent = 0
        try:
            for piece in pieces:
                self._socket.sendall(piece)
                sent += len(piece)
        except ConnectionError:
            pass
        return sent

    def drip(self, pieces: Iterable[bytes], seconds: float) -> None:
        """Sends one piece after the other with a pause, until the server ends the connection."""
        try:
            for piece in pieces:
                self._socket.sendall(piece)
                time.sleep(seconds)
        except ConnectionError:
            pass

    def answer(self) -> Answer:
        """Reads one answer that has a Content-Length."""
        while b"\r\n\r\n" not in self._read:
            self._receive()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        length = int(headers["content-length"])
        while len(self._read) < length:
            self._receive()
        body, self._read = self._read[:length], self._read[length:]
        return Answer(int(first.split()[1]), headers, body)

    def read_some(self, count: int) -> None:
        self._read += self._socket.recv(count)

    def read_until(self, text: bytes) -> bool:
        """Whether `text` comes before the connection ends."""
        try:
            while text not in self._read:
                self._receive()
        except ConnectionError:
            return False
        return True

    def rest(self) -> bytes:
        """All that comes before the connection ends."""
        try:
            while True:
                self._receive()
        except ConnectionError:
            return self._read

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._read += data
