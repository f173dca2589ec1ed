"""The cheapest HTTP/1.1 client that reads every answer: one connection, httptools' parser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

CHUNK = 2**16
MOST_KEPT = 2**20  # bytes of an answer; the rest is read and dropped


class ConnectionDropped(Exception):
    """The connection ended without a whole answer."""


@dataclass(slots=True)
class HttpReply:
    """One answer. `on_data` is told the time at which each piece of the body was read."""

    on_data: Callable[[float], None] | None = None
    status: int = 0
    reused: bool = False  # it came over a connection that had served before
    keep_alive: bool = False
    done: bool = False
    pieces: list[bytes] = field(default_factory=list)
    kept: int = 0
    parser: httptools.HttpResponseParser = field(init=False)

    def __post_init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    # httptools calls these
    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        if self.on_data is not None:
            self.on_data(time.monotonic())
        if self.kept < MOST_KEPT:
            self.pieces.append(piece)
        else:  # the end tells how a stream ended
            self.pieces[-1] = piece
        self.kept += len(piece)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.keep_alive, self.done = self.parser.should_keep_alive(), True


class HttpConnection:
    """A keep-alive connection to one server, opened when it is needed."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.url, self._host, self._port = url, address.hostname, address.port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(
        self,
        method: str,
        target: str,
        content: bytes = b"",
        on_data: Callable[[float], None] | None = None,
    ) -> HttpReply:
        """Return the whole answer to one request.

        A server may close an idle connection just as it is used; the request is then sent once
        more. Raises ConnectionDropped, and ConnectionError where no server listens.
        """
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        if method == "POST":
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        request = head.encode("latin-1") + b"\r\n" + content
        reply = await self._sent(request, HttpReply(on_data))
        if not reply.done and reply.reused and not reply.status:
            reply = await self._sent(request, HttpReply(on_data))
        if not reply.done:
            raise ConnectionDropped(f"the connection ended after status {reply.status or 'none'}")
        return reply

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _sent(self, request: bytes, reply: HttpReply) -> HttpReply:
        reply.reused = self._writer is not None
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert self._reader is not None
        writing = asyncio.ensure_future(self._write(request))
        try:  # a refusal may come before the whole body is written
            while not reply.done:
                try:
                    data = await self._reader.read(CHUNK)
                except OSError:
                    break
                if not data:
                    break
                reply.parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionDropped(f"the answer is no HTTP: {error}") from None
        finally:
            whole = writing.done() and not writing.cancelled() and writing.result()
            writing.cancel()
            if not (reply.done and reply.keep_alive and whole):
                self.close()
        return reply

    async def _write(self, request: bytes) -> bool:
        assert self._writer is not None
        try:
            self._writer.write(request)
            await self._writer.drain()
        except OSError:
            return False
        return True
