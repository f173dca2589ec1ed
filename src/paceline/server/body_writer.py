"""Writes of a streamed answer past ASGI: at once, and from the engine's thread where that can be.

To write by ASGI's `send`, a coroutine, a task would have to wake first; and an event loop that
wakes for each step takes a core from the computation of the next.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Self

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

WRITER = "paceline.body_writer"  # the extension's key in an ASGI scope


class OpenSocket:
    """The socket under a transport, which other threads may write to until it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()  # held while the descriptor is in use
        self._closed = False

    @classmethod
    def of(cls, transport: asyncio.Transport) -> Self | None:
        """Return the socket of a transport; None where what it sends is encrypted first."""
        sock = transport.get_extra_info("socket")
        if sock is None or transport.get_extra_info("sslcontext") is not None:
            return None
        return cls(sock.fileno())

    def send(self, data: bytes) -> int:
        """Send what fits now, and return how many bytes that were. An error sends none: the
        transport meets the same one, and handles it. A closed socket swallows everything."""
        with self._lock:
            if self._closed:
                return len(data)
            try:
                return os.write(self._descriptor, data)
            except OSError:
                return 0

    def close(self) -> None:
        """Send nothing from now on. Call it before the descriptor is closed."""
        with self._lock:
            self._closed = True


class BodyWriter:
    """Writes the next bytes of an answer at once. Apps find the writer in their scope:
    `body_writer(scope)`.

    With a socket it is `off_loop`: one other thread may call is_ready() and write(), while the
    event loop writes nothing of this answer. What does not fit into the socket goes to the
    transport, and the writer is not ready until that is sent.
    """

    def __init__(
        self,
        cycle: RequestResponseCycle,
        socket: OpenSocket | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._cycle, self._socket, self._loop = cycle, socket, loop
        self._has_rest = False  # on its way to the transport

    @property
    def off_loop(self) -> bool:
        return self._socket is not None

    def is_ready(self) -> bool:
        """Return whether the answer has begun, in chunks, and its client reads fast enough."""
        cycle = self._cycle
        begun = cycle.response_started and not cycle.response_complete
        if not begun or not cycle.chunked_encoding or cycle.flow.write_paused:
            return False
        if self._socket is None:
            return True
        return not (self._has_rest or cycle.disconnected or self._unsent())

    def write(self, body: bytes) -> None:
        """Write `body`, which is not empty, as one chunk; nothing where the client has gone."""
        if self._cycle.disconnected:
            return
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        if self._socket is None:
            self._cycle.transport.write(chunk)
            return
        sent = self._socket.send(chunk)
        if sent < len(chunk):
            self._has_rest = True
            self._loop.call_soon_threadsafe(self._write_rest, chunk[sent:])

    def _write_rest(self, rest: bytes) -> None:
        if not self._cycle.disconnected:
            self._cycle.transport.write(rest)
        self._has_rest = False

    def _unsent(self) -> int:
        """Return the bytes that the transport keeps, and must send before anything else."""
        return self._cycle.transport.get_write_buffer_size()


def body_writer(scope: Scope) -> BodyWriter | None:
    """Return the writer of a request's answer; None where another server runs the app."""
    writer: BodyWriter | None = scope.get("extensions", {}).get(WRITER)
    return writer
