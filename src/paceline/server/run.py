"""The life of a server process: it listens, serves and drains."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvloop

from paceline.core import PacelineError
from paceline.engine.async_engine import AsyncEngine, EngineDead
from paceline.server.app import create_app
from paceline.server.listener import HttpServer
from paceline.server.live import Live
from paceline.server.settings import ServerSettings

log = logging.getLogger(__name__)
LAST_WRITES = 5.0  # seconds, at least, that answers get to reach their clients from a done engine


def bind(settings: ServerSettings) -> socket.socket:
    """Take the port, and refuse connections until the server is up.

    Call it before a model is loaded, so that a port in use is noticed at once.

    Raises PacelineError naming host and port.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PacelineError(f"cannot listen on host {host!r}: {error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        reason = error.strerror
        if error.errno == errno.EADDRINUSE:
            reason = "it is in use; choose another port, or 0 for any free one"
        raise PacelineError(f"cannot listen on port {port} of {host}: {reason}") from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the URL under which a client reaches the server."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announce(url: str) -> None:
    print(f"Paceline is serving at {url}/ (its web page) and {url}/v1", flush=True)


def serve(
    async_engine: AsyncEngine,
    settings: ServerSettings,
    *,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] = announce,
) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second signal aborts the running requests.

    Starts the engine's thread and stops it at the end. `sock` is one that bind() gave; without it
    the settings' port is taken here. `on_ready` is called with the server's URL.

    Raises PacelineError when the port cannot be had, and EngineDead when the engine has died: all
    that waited has been answered by then.
    """
    server = Server(async_engine, settings, sock or bind(settings), on_ready)
    if not (settings.api_keys or settings.on_loopback):
        log.warning("no API key is set: whoever reaches %s may use the model", server.url)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run())


class Server:
    """One listening server. run() is its life; stop() may be called from any thread."""

    def __init__(
        self,
        async_engine: AsyncEngine,
        settings: ServerSettings,
        sock: socket.socket,
        on_ready: Callable[[str], None] = announce,
    ) -> None:
        self.url = url_of(sock)
        self._engine, self._settings, self._sock = async_engine, settings, sock
        self._on_ready = on_ready
        app = create_app(async_engine, settings)
        self._live: Live = app.state.live
        # this bound is never reached: _until_written() cuts off before, and without a traceback
        graceful = math.ceil(settings.drain_timeout + 2 * LAST_WRITES)
        self._http = HttpServer(app, settings, graceful_seconds=graceful)
        self._signals: asyncio.Queue[None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Do as a signal does: the first call drains, the second aborts."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._signals.put_nowait, None)

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine.start()
        sampling = asyncio.create_task(self._live.run())
        try:
            with self._signal_handlers(self._loop):
                task = asyncio.create_task(self._http.serve(sockets=[self._sock]))
                await self._until_ready(task)
                left = await self._until_stopped(task)
                await self._until_written(task, max(left, LAST_WRITES))
                self._raise_if_dead()
        finally:
            sampling.cancel()
            self._engine.shutdown()

    # -- inside -----------------------------------------------------------------------------------

    def _raise_if_dead(self) -> None:
        """Raise EngineDead if the engine died: the process ends with an exit code above 0."""
        if self._engine.error is not None:
            raise EngineDead(f"the engine has stopped: {self._engine.error}")

    async def _until_ready(self, task: asyncio.Task[None]) -> None:
        while not (self._http.started or task.done()):
            await asyncio.sleep(0.01)
        if task.done():
            await task  # raises what went wrong
            raise PacelineError("the HTTP server ended before it had started")
        self._on_ready(self.url)

    async def _until_stopped(self, http: asyncio.Task[None]) -> float:
        """Wait for a signal, then for the drain; new requests get a 503 meanwhile. Return the
        seconds that are left of the drain's time. Returns at once when the engine dies."""
        signalled = asyncio.create_task(self._signals.get())
        died = asyncio.create_task(self._engine.died())
        await asyncio.wait([signalled, http, died], return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        died.cancel()
        if http.done() or died.done():
            return 0.0
        end = time.monotonic() + self._settings.drain_timeout
        log.info("draining for up to %.0f s", self._settings.drain_timeout)
        again = asyncio.create_task(self._signals.get())
        drain = asyncio.create_task(self._engine.drain(self._settings.drain_timeout))
        await asyncio.wait([drain, again], return_when=asyncio.FIRST_COMPLETED)
        cut_short = again.done()
        drain.cancel()
        again.cancel()
        await self._engine.drain(0)
        return 0.0 if cut_short else end - time.monotonic()

    async def _until_written(self, http: asyncio.Task[None], seconds: float) -> None:
        """Wait until all is sent to clients that read more slowly than the engine wrote; those
        that are not done in time, or at another signal, are cut off."""
        self._http.should_exit = True
        again = asyncio.create_task(self._signals.get())
        await asyncio.wait([http, again], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not http.done():
            unread = list(self._http.server_state.connections)
            if unread:
                log.warning("cutting off %d clients that have not read their answers", len(unread))
            for connection in unread:
                connection.transport.abort()
        await http

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
