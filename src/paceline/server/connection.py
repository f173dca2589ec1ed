"""One client's connection: bounds on bytes and times of requests, before they are parsed.

uvicorn and httptools keep whatever a client sends as a request's head, for as long as it takes.
Here the bytes are counted before they are parsed, and each turn of the client has a time limit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from paceline.server.access import write_refusal
from paceline.server.body_writer import WRITER, BodyWriter, OpenSocket
from paceline.server.errors import ApiError

if TYPE_CHECKING:
    from paceline.server.listener import Connections

# Real requests are far below: browsers and proxies stop at 8 to 32 KiB, vLLM and llama.cpp at 64
# KiB. Together they bound what a connection can hold before its request is looked at.
MAX_URL = 8 * 2**10  # bytes
MAX_HEADERS = 128
MAX_HEADER_BYTES = 64 * 2**10
SLICE = 8 * 2**10  # bytes that are parsed before the next look at the counts
FRAMING = 16  # bytes around a byte of a chunked body; chunks of one byte need 5
MAX_PIPELINED = 128  # requests that wait for the answer of the one before
MAX_UNREAD = 2**20  # bytes that are read after a refusal, so that the client can read why
MIN_RATE = 8 * 2**10  # bytes a second of a body, on average, once read_timeout has passed
LINGER = 2.0  # seconds in which a refused client may read why


class Connection(HttpToolsProtocol):
    """Speaks HTTP/1.1 with one client, and ends clients that send too much or too slowly.

    Connections.watch() calls check() from time to time.
    """

    def __init__(self, connections: Connections, **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self._peers, self._settings = connections, connections.settings
        self._in_head = True  # waits for or reads the head of a request, else its body
        self._turns = 0  # heads and bodies that have ended
        self._extra = 0  # bytes of this head, or bytes of this body that are no content
        self._header_bytes = 0
        self._body_bytes = 0
        self._since = self._moved = self.loop.time()  # start of the client's turn; its last bytes
        self._unsent, self._unsent_since = 0, self._since
        self._refusal: ApiError | None = None  # what was wrong; nothing is parsed after it
        self._unanswered: list[RequestResponseCycle] = []
        self._socket: OpenSocket | None = None  # where other threads may write to it

    # -- called by the event loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._socket = OpenSocket.of(transport)
        if self._peers.admit(self):
            super().connection_made(transport)
        else:
            self._write_refusal(self._peers.full())
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._socket.close()  # another connection may get its number next
        self._peers.forget(self)
        self.pipeline.clear()
        for cycle in self._unanswered:  # uvicorn tells the newest only
            _give_up(cycle)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._moved = self.loop.time()
        if self._refusal is not None:
            self._discard(len(data))
            return
        if self._in_head and not self._extra:
            self._since = self._moved
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError as error:
            reason = f"this is no valid HTTP request: {error}"
            self.refuse(self._refusal or ApiError(400, reason, code="bad_http"))

    def _parse(self, data: memoryview) -> None:
        """Feed the parser slice by slice. A count that passes its bound raises from a callback or
        from here, so that no more than a slice is kept beyond it."""
        start = 0
        while start < len(data) and not self.transport.is_closing():
            part = data[start : start + SLICE]
            turns, body = self._turns, self._body_bytes
            try:
                self.parser.feed_data(part)
                start += len(part)
            except httptools.HttpParserUpgrade as upgrade:
                start += upgrade.args[0]  # no other protocol is spoken here: HTTP/1.1 goes on
            if turns == self._turns:
                self._extra += len(part) - (self._body_bytes - body)
                self._bound_extra()

    def _bound_extra(self) -> None:
        if self._in_head and self._extra > MAX_HEADER_BYTES + SLICE:
            self._stop(_headers_too_large())
        if not self._in_head and self._extra > MAX_HEADER_BYTES + FRAMING * self._body_bytes:
            message = "the body has more chunk extensions and trailers than content"
            self._stop(ApiError(400, message, code="bad_http"))

    def _stop(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise httptools.HttpParserError(str(refusal))

    # -- called by the parser ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > MAX_URL:
            message = f"the URL is longer than {MAX_URL} bytes, which is the bound here"
            self._stop(ApiError(414, message, code="url_too_long"))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer, which must not pass for a header
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            self._stop(_headers_too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(ApiError(400, "too many requests at once", code="bad_http"))
        self._turn(in_head=False)
        super().on_headers_complete()
        left = [cycle for cycle in self._unanswered if not cycle.response_complete]
        self._unanswered = [*left, self.cycle]
        scope = cast(Scope, self.cycle.scope)
        scope["extensions"] = {WRITER: BodyWriter(self.cycle, self._socket, self.loop)}

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)
        # Many clients read no answer before they have sent all: one a little too long gets its 413.
        bound = self._settings.max_body_bytes + MAX_UNREAD
        if self.cycle.response_complete and self._body_bytes > bound:
            self.transport.close()

    def on_message_complete(self) -> None:
        self._turn(in_head=True)
        super().on_message_complete()
        if self._is_busy():
            self._peers.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self._moved = self.loop.time()
        if not self._is_busy():
            self._peers.wait_for(self)

    def _turn(self, *, in_head: bool) -> None:
        self._in_head = in_head
        self._turns += 1
        self._extra = self._body_bytes = 0
        self._since = self._moved = self.loop.time()

    # -- time -------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """End the connection if its client has used up its time."""
        if self._leaves_unread(now):
            self.transport.abort()
        elif self._refusal is not None:
            if now - self._since >= LINGER:
                self.transport.abort()
        elif not (self.transport.is_closing() or self._is_busy()):
            self._check_reading(now)

    def _check_reading(self, now: float) -> None:
        limit = self._settings.read_timeout
        if self.flow.read_paused:  # it is we who do not read
            self._since = self._moved = now
        elif self._in_head and not self._extra:
            if self.cycle is None and now - self._since >= limit:  # else uvicorn's keep-alive timer
                self.transport.close()
        elif self._in_head and now - self._since >= limit:
            self.refuse(_too_slow(f"its headers took longer than {limit:g} s"))
        elif not self._in_head and now - self._moved >= limit:
            self.refuse(_too_slow(f"its body paused for longer than {limit:g} s"))
        elif not self._in_head and now - self._since >= limit + self._body_bytes / MIN_RATE:
            self.refuse(_too_slow(f"its body came at less than {MIN_RATE} bytes a second"))

    def _leaves_unread(self, now: float) -> bool:
        """Return whether no byte of an answer could be sent for write_timeout.

        Judged while nothing is added to what is unsent: the app waits, or it is done.
        """
        unsent = self.transport.get_write_buffer_size()
        growing = self._is_busy() and not self.flow.write_paused
        if growing or not unsent or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        return now - self._unsent_since >= self._settings.write_timeout

    def _is_busy(self) -> bool:
        cycle = self.cycle
        return bool(self.pipeline) or (
            cycle is not None and not cycle.response_complete and not cycle.more_body
        )

    # -- refusals ---------------------------------------------------------------------------------

    def give_way(self) -> None:
        """Close the connection in favour of a new one. Its client owes a request, or has its
        answer."""
        begun = not self._in_head or self._extra
        if begun and self._refusal is None and not self.transport.get_write_buffer_size():
            self._answer(self._peers.full())
            self.transport.close()
        else:
            self.transport.abort()

    def refuse(self, refusal: ApiError) -> None:
        """Answer and stop reading; the connection ends when the client has read the answer, or
        after LINGER. While another answer is being sent, end the connection without an answer."""
        self._refusal = refusal
        self._since, self._body_bytes = self.loop.time(), 0
        if self._answer(refusal):
            if self.transport.can_write_eof():  # TLS cannot; its client goes by the length
                self.transport.write_eof()
        else:
            self.transport.abort()

    def _answer(self, refusal: ApiError) -> bool:
        """Write `refusal` in place of the app's answer; return False if that answer has begun."""
        cycle = self.cycle
        if self._is_busy() or (cycle and cycle.response_started and not cycle.response_complete):
            return False
        if cycle is not None and not cycle.response_complete:
            _give_up(cycle)
        elif cycle is not None and cycle.more_body:
            return False  # it has its answer, and has not sent the whole body
        self._write_refusal(refusal)
        return True

    def _write_refusal(self, refusal: ApiError) -> None:
        body = refusal.body()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **refusal.headers,
            "connection": "close",
        }
        lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        lines += [b"%s: %s\r\n" % header for header in self.server_state.default_headers]
        self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body]))
        if refusal.status != 503:  # Connections warns of these, once a minute
            peer = self.transport.get_extra_info("peername")
            write_refusal(str(peer[0]) if isinstance(peer, tuple) else "-", refusal)

    def _discard(self, count: int) -> None:
        """Read and count what arrives after a refusal: unread bytes would cause a reset, and the
        answer would be lost."""
        self._body_bytes += count
        if self._body_bytes > MAX_UNREAD:
            self.transport.abort()


def _give_up(cycle: RequestResponseCycle) -> None:
    """Tell the app that the client of `cycle` is gone."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()


def _headers_too_large() -> ApiError:
    bounds = f"{MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them"
    message = f"the request has more than {bounds}, which is the bound here"
    return ApiError(431, message, code="headers_too_large")


def _too_slow(reason: str) -> ApiError:
    return ApiError(408, f"the request was sent too slowly: {reason}", code="request_timeout")
