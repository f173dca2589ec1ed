"""A server that answers as an engine once did."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded")
Answers = Mapping[str, str | dict[str, Any]]  # by path; a text that begins with data: is a stream


class ReplayedEngine:
    """Where a server listens, and the bodies that were sent to it, by path."""

    def __init__(self, url: str) -> None:
        self.url, self.asked = url, dict[str, Any]()


@contextmanager
def replayed(answers: Answers) -> Iterator[ReplayedEngine]:
    """Serve recorded answers; a path that has none is 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            text = answer if isinstance(answer, str) else json.dumps(answer)
            kind = "text/plain"
            if text.startswith("data:"):
                kind = "text/event-stream"
            elif isinstance(answer, dict):
                kind = "application/json"
            self.send_response(404 if answer is None else 200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            engine.asked[self.path] = json.loads(body)
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine = ReplayedEngine(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()


def stream(*events: dict[str, Any]) -> str:
    """Write events as a server streams them."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
