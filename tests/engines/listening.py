"""An HTTP server of the tests, on a free loopback port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ManyConnections(ThreadingHTTPServer):
    """Has room for the connections that a client opens at once: Python's five are fewer than an
    audit's eight, and one that finds no room waits for seconds."""

    daemon_threads = True
    request_queue_size = 128


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ManyConnections(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
