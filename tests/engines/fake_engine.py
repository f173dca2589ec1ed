"""A program that behaves like an engine's server while it starts, runs and ends.

    python fake_engine.py [--say TEXT]... [--fail TEXT] [--stubborn] serve TARGET ... --port N

It starts a child that leaves its process group, as no engine should, and prints that child's id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

CHILD = "import os, time; os.setsid(); time.sleep(600)"
ANSWERS: dict[str, object] = {
    "/health": {},
    "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 128}]},
    "/version": {"version": "0.32.0"},
}
METRICS = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = METRICS if self.path == "/metrics" else json.dumps(ANSWERS.get(self.path))
        self.send_response(404 if text == "null" else 200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def main(words: list[str]) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD])
    print("child", child.pid, flush=True)
    if "--stubborn" in words:
        signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM ignored", flush=True))
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for place, word in enumerate(words):
        if word == "--say":
            print(words[place + 1], end="\r", flush=True)
        if word == "--fail":
            print(words[place + 1], flush=True)
            print("Traceback of the wrapper\nRuntimeError: start failed, see above", flush=True)
            os._exit(3)
    port = int(words[words.index("--port") + 1])
    time.sleep(0.2)
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
