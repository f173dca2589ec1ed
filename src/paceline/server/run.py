"""The life of a server process: it listens, serves and drains; or it serves the page alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path

import uvloop
from fastapi import FastAPI

from paceline.core import PacelineError
from paceline.core.garbage import collecting_paused
from paceline.engine.async_engine import AsyncEngine, EngineDead
from paceline.server.app import create_app
from paceline.server.capture import Capture
from paceline.server.extension import ServerExtension
from paceline.server.languages import Languages
from paceline.server.listener import HttpServer
from paceline.server.live import Live
from paceline.server.settings import ServerSettings
from paceline.server.sockets import announcement, bind, url_of
from paceline.server.ui import create_ui_app

log = logging.getLogger(__name__)
LAST_WRITES = 5.0  # seconds, at least, that answers get to reach their clients from a done engine
PAGE_WRITES = 2  # the same for a server of the page alone


def serve(
    async_engine: AsyncEngine,
    settings: ServerSettings,
    *,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] | None = None,
    extensions: Sequence[ServerExtension] = (),
) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second signal aborts the running requests.

    Starts the engine's thread and stops it at the end. `sock` is one that bind() gave; without it
    the settings' port is taken here. `on_ready` is called with the server's URL; without it the
    server prints where it is reached.

    Raises PacelineError when the port cannot be had, and EngineDead when the engine has died: all
    that waited has been answered by then.
    """
    ready = on_ready or (lambda url: print(announcement(url, settings), flush=True))
    with collecting_paused():
        server = Server(async_engine, settings, sock or bind(settings), ready, extensions)
    warn_of_open_server(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run())


def warn_of_open_server(settings: ServerSettings) -> None:
    """Warn where other machines reach a server that asks for no key."""
    if not (settings.api_keys or settings.on_loopback):
        text = "no API key is set, so every machine that reaches %s port %d may use this server"
        log.warning(text + "; set PACELINE_API_KEY", settings.host, settings.port)


def serve_ui(
    settings: ServerSettings, *, on_ready: Callable[[str], None], runs: Sequence[Path] = ()
) -> None:
    """Serve the page without a model until SIGINT or SIGTERM, with the training in the folders
    `runs`; `on_ready` gets the URL.

    Raises PacelineError when the port is taken.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(UiServer(settings, on_ready, runs).run())


class Listener:
    """One listening server. Call run() once; stop() may be called from any thread."""

    def __init__(
        self,
        app: FastAPI,
        settings: ServerSettings,
        sock: socket.socket,
        on_ready: Callable[[str], None],
        graceful_seconds: int,
    ) -> None:
        self.url = url_of(sock, settings)
        self._sock, self._on_ready = sock, on_ready
        self._http = HttpServer(app, settings, graceful_seconds=graceful_seconds)
        self._signals: asyncio.Queue[None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops: deque[None] = deque()  # asked for, and not yet among the signals

    def stop(self) -> None:
        """Do as a signal does; before run() has begun, as soon as it has."""
        self._stops.append(None)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        while self._stops:
            self._signals.put_nowait(self._stops.popleft())

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._hand_over()
        with self._signal_handlers(self._loop):
            http = asyncio.create_task(self._http.serve(sockets=[self._sock]))
            try:
                await self._until_ready(http)
                await self._until_done(http)
            finally:
                self._sock.close()

    async def _until_done(self, http: asyncio.Task[None]) -> None:
        await _first(http, self._signals.get())
        self._http.should_exit = True
        await http

    async def _until_ready(self, http: asyncio.Task[None]) -> None:
        while not (self._http.started or http.done()):
            await asyncio.sleep(0.01)
        if http.done():
            await http  # raises what went wrong
            raise PacelineError("the HTTP server ended before it had started")
        self._on_ready(self.url)

    @contextlib.contextmanager
    def _signal_handlers(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals belong to the main thread; here stop() is the way
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._signals.put_nowait, None)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)


class UiServer(Listener):
    """A server of the page alone, without a model."""

    def __init__(
        self,
        settings: ServerSettings,
        on_ready: Callable[[str], None],
        runs: Sequence[Path] = (),
    ) -> None:
        app = create_ui_app(settings, runs)
        super().__init__(app, settings, bind(settings), on_ready, PAGE_WRITES)


class Server(Listener):
    """A server of a model: the first signal or stop() drains, the second aborts."""

    def __init__(
        self,
        async_engine: AsyncEngine,
        settings: ServerSettings,
        sock: socket.socket,
        on_ready: Callable[[str], None],
        extensions: Sequence[ServerExtension] = (),
    ) -> None:
        app = create_app(async_engine, settings, extensions)
        # this bound is never reached: _until_written() cuts off before, and without a traceback
        graceful = math.ceil(settings.drain_timeout + 2 * LAST_WRITES)
        super().__init__(app, settings, sock, on_ready, graceful)
        self._engine, self._drain_timeout = async_engine, settings.drain_timeout
        self._live: Live = app.state.live
        self._languages: Languages = app.state.languages
        self._capture: Capture | None = app.state.capture

    async def run(self) -> None:
        self._engine.start()
        sampling = asyncio.create_task(self._live.run())
        try:
            await super().run()
        finally:
            sampling.cancel()
            self._engine.shutdown()
            if self._capture is not None:
                self._capture.close()

    async def _until_ready(self, http: asyncio.Task[None]) -> None:
        await super()._until_ready(http)
        # Python for a while: earlier it would hold up the start
        self._engine.compiler.warm_up()
        self._languages.load_soon()

    async def _until_done(self, http: asyncio.Task[None]) -> None:
        left = await self._until_stopped(http)
        await self._until_written(http, max(left, LAST_WRITES))
        if self._engine.error is not None:  # the process ends with an exit code above 0
            raise EngineDead(f"the engine has stopped: {self._engine.error}")

    async def _until_stopped(self, http: asyncio.Task[None]) -> float:
        """Wait for a signal, then for the drain; new requests get a 503 meanwhile. Return the
        seconds that are left of the drain's time. Returns at once when the engine dies."""
        _, died = await _first(http, self._signals.get(), self._engine.died())
        if http.done() or died:
            return 0.0
        end = time.monotonic() + self._drain_timeout
        running = self._engine.stats().running + self._engine.stats().waiting
        if running:
            text = "%d requests are running: draining for up to %.0f s"
            log.info(text, running, self._drain_timeout)
        else:
            log.info("stopping; no request is running")
        again, _ = await _first(http, self._signals.get(), self._engine.drain(self._drain_timeout))
        await self._engine.drain(0)
        return 0.0 if again else end - time.monotonic()

    async def _until_written(self, http: asyncio.Task[None], seconds: float) -> None:
        """Wait until all is sent to clients that read more slowly than the engine wrote; those
        that are not done in time, or at another signal, are cut off."""
        self._http.should_exit = True
        await _first(http, self._signals.get(), timeout=seconds)
        if not http.done():
            unread = list(self._http.server_state.connections)
            if unread:
                log.warning("cutting off %d clients that have not read their answers", len(unread))
            for connection in unread:
                connection.transport.abort()
        await http


async def _first(
    http: asyncio.Task[None], *others: Coroutine[None, None, object], timeout: float | None = None
) -> list[bool]:
    """Wait until `http` or one of the others ends. Return which of the others have ended; the rest
    of them is cancelled."""
    tasks = [asyncio.create_task(other) for other in others]
    await asyncio.wait([http, *tasks], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    ended = [task.done() for task in tasks]
    for task in tasks:
        task.cancel()
    return ended
