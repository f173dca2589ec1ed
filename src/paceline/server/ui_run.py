"""A server for the page alone, without a model: it listens until a signal."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import uvloop

from paceline.server.listener import HttpServer
from paceline.server.run import bind, url_of
from paceline.server.settings import ServerSettings
from paceline.server.ui import create_ui_app


def serve_ui(settings: ServerSettings, *, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, and call `on_ready` with the URL once the server listens.

    Raises PacelineError when the port is taken.
    """
    server = UiServer(settings, on_ready)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run())


class UiServer:
    """One listening server. Call run() once; stop() may be called from any thread."""

    def __init__(self, settings: ServerSettings, on_ready: Callable[[str], None]) -> None:
        self._sock = bind(settings)
        self.url = url_of(self._sock)
        self._on_ready = on_ready
        self._http = HttpServer(create_ui_app(settings), settings, graceful_seconds=2)

    def stop(self) -> None:
        self._http.should_exit = True

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread():
            for number in handled:
                loop.add_signal_handler(number, self.stop)
        task = asyncio.create_task(self._http.serve(sockets=[self._sock]))
        while not (self._http.started or task.done()):
            await asyncio.sleep(0.01)
        if not task.done():
            self._on_ready(self.url)
        await task
