"""The HTTP server under both apps: uvicorn, with bounds on connections, bytes and times."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI

from paceline.server.connection import Connection
from paceline.server.errors import ApiError
from paceline.server.settings import ServerSettings
from paceline.server.sockets import connection_bound

log = logging.getLogger(__name__)
INTERVAL = 0.25  # seconds between two looks at the time limits
WARN_EVERY = 60.0  # seconds between two log lines about a full server


class Connections:
    """All open connections, at most `bound`.

    A newcomer beyond the bound takes the place of the client that has owed a request for longest:
    idle ones and those that send slowly or not at all. Requests that are being answered keep their
    place; where all do, the newcomer gets a 503.
    """

    def __init__(self, settings: ServerSettings, bound: int) -> None:
        self.settings, self.bound = settings, bound
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}  # for their client, the longest first
        self._warned = -WARN_EVERY

    def admit(self, connection: Connection) -> bool:
        """Give `connection` a place; return False if there is none."""
        if len(self.open) >= self.bound:
            now = time.monotonic()
            if now - self._warned >= WARN_EVERY:
                self._warned = now
                log.warning("all %d connections are in use (--max-connections)", self.bound)
            oldest = next(iter(self.waiting), None)
            if oldest is None:
                return False
            del self.waiting[oldest]
            oldest.give_way()
        self.open.add(connection)
        self.wait_for(connection)
        return True

    def wait_for(self, connection: Connection) -> None:
        """Note that the client of `connection` owes a request from now on."""
        self.waiting.pop(connection, None)
        self.waiting[connection] = None

    def forget(self, connection: Connection) -> None:
        self.open.discard(connection)
        self.waiting.pop(connection, None)

    def full(self) -> ApiError:
        message = f"{self.bound} connections are open, which is the bound here; try again later"
        return ApiError(503, message, code="too_many_connections", retry_after=1)

    async def watch(self) -> None:
        """End connections whose clients have used up their time, until the task is cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL)
            now = time.monotonic()
            # After a pause of the whole loop, what clients have sent meanwhile is not read yet
            if now - last < INTERVAL + 1:
                for connection in list(self.open):
                    try:
                        connection.check(connection.loop.time())
                    except Exception:  # the time limits of all others must go on
                        log.exception("a connection could not be checked")
                        connection.transport.abort()
            last = now


class HttpServer(uvicorn.Server):
    """Serves an ASGI app. Its caller handles signals."""

    def __init__(self, app: FastAPI, settings: ServerSettings, *, graceful_seconds: int) -> None:
        self.peers = Connections(settings, connection_bound(settings))
        config = uvicorn.Config(
            app,
            http=partial(Connection, self.peers),  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
            timeout_graceful_shutdown=graceful_seconds,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        super().__init__(config)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        watch = asyncio.create_task(self.peers.watch())
        try:
            await super().serve(sockets)
        finally:
            watch.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would end the process by the signal, without a drain."""
        yield
