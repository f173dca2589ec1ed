"""A program that serves like vLLM, without a model: answers of any length at any speed.

    python fake_worker.py [--fail TEXT] [--deaf] serve TARGET ... --port N

With `--deaf` it never answers. An answer's text is made of its prompt alone, as with real engines
that draft losslessly. A request may say `delay`, the seconds between two tokens, `breaks_off`, for
an answer without its end, and `status`, for an answer that is an error. `/counts` tells what came
in. In answers, `worker` is the port.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS: dict[str, object] = {
    "/health": {},
    "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 128}]},
    "/version": {"version": "0.32.0"},
}
METRICS = "vllm:num_requests_running {}\nvllm:num_requests_waiting 0\n"


class Counts:
    """What has come in, over all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.answered = self.cancelled = 0

    def add(self, **changes: int) -> None:
        with self.lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    counts = Counts()
    name = ""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(METRICS.format(self.counts.running).encode())
        elif self.path == "/counts":
            told = {**vars(self.counts), "name": self.name}
            del told["lock"]
            self._send(json.dumps(told).encode())
        else:
            found = ANSWERS.get(self.path)
            self._send(json.dumps(found).encode(), 404 if found is None else 200)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.counts.add(running=1)
        try:
            self._answer(body)
            self.counts.add(answered=1)
        except OSError:
            self.counts.add(cancelled=1)
            self.close_connection = True
        finally:
            self.counts.add(running=-1)

    def _answer(self, body: dict[str, Any]) -> None:
        if "status" in body:
            self._send(b'{"error": {"message": "tide"}}', body["status"])
            return
        tokens = body.get("max_tokens", 3)
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        words = [f"{prompt}-{place} " for place in range(tokens)]
        if not body.get("stream"):
            time.sleep(body.get("delay", 0) * tokens)
            self._send(json.dumps(whole(words, body, self.name)).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events(words, body, self.name):
            self._chunk(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(body.get("delay", 0))
            if body.get("breaks_off"):
                raise OSError
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, data: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def whole(words: list[str], body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an answer that is not streamed."""
    choice: dict[str, Any] = {"message": {"content": "".join(words)}, "finish_reason": "length"}
    told: dict[str, Any] = {"choices": [choice], "worker": name, **counts(words)}
    if body.get("return_token_ids"):
        choice["token_ids"] = [100 + place for place in range(len(words))]
        told["prompt_token_ids"] = [1, 2, 3]
    return told


def events(words: list[str], body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the events of a stream: a token each, then usage and what the drafts did."""
    told: list[dict[str, Any]] = []
    for place, word in enumerate(words):
        choice: dict[str, Any] = {"delta": {"content": word}, "finish_reason": None}
        if body.get("return_token_ids"):
            choice["token_ids"] = [100 + place]
        told.append({"worker": name, "choices": [choice]})
    told[-1]["choices"][0]["finish_reason"] = "length"
    if body.get("return_token_ids"):
        told[0]["prompt_token_ids"] = [1, 2, 3]
    return [*told, {"choices": [], **counts(words)}]


def counts(words: list[str]) -> dict[str, Any]:
    """Return what vLLM tells of an answer: a first token, and two rounds of which one is accepted
    in part."""
    drafts = {
        "num_spec_steps": 2, "num_draft_tokens": 6, "num_accepted_draft_tokens": 3,
        "per_step_drafted": [3, 3], "per_step_accepted": [2, 1],
    }  # fmt: skip
    usage = {"prompt_tokens": 3, "completion_tokens": len(words)}
    return {"usage": usage, "metrics": {"speculative_decoding": drafts}}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main(words: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "--fail" in words:
        print(f"RuntimeError: {words[words.index('--fail') + 1]}", flush=True)
        os._exit(3)
    if "--deaf" in words:
        time.sleep(600)
    port = int(words[words.index("--port") + 1])
    Handler.name = str(port)
    print(f"worker {Handler.name} listens", flush=True)
    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
