"""The routers of SGLang and vLLM in front of one server, as ways to it that tests may take.

`python -m tests.server.routers` writes what they send for REQUESTS into `recorded/`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from paceline.bench.load.server_process import ServerProcess, free_port

KEY = "secret"
START_SECONDS = 60.0
RECORDED = Path(__file__).parent / "recorded"
Sent = tuple[str, dict[str, Any]]  # path and body

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Is it warm?"}]},
    {"role": "assistant", "content": "Sun.", "refusal": None, "tool_calls": None},
    {"role": "user", "content": "Really?"},
]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REQUESTS: dict[str, Sent] = {
    "chat": (CHAT, {"messages": MESSAGES, "max_tokens": 8, "seed": 1}),
    "stream": (
        CHAT,
        {
            "messages": MESSAGES,
            "max_completion_tokens": 8,
            "temperature": 0.7,
            "seed": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "options": (
        CHAT,
        {
            "messages": MESSAGES,
            "max_tokens": 8,
            "top_p": 0.9,
            "n": 2,
            "stop": ["x"],
            "logprobs": True,
            "top_logprobs": 2,
            "logit_bias": {"5": 1.5},
            "presence_penalty": 0.5,
            "seed": 1,
        },
    ),
    "tools": (
        CHAT,
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 8, "seed": 1},
    ),
    "schema": (
        CHAT,
        {
            "messages": MESSAGES,
            "max_tokens": 8,
            "seed": 1,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
            },
        },
    ),
    "conversation": (CHAT, {"messages": CONVERSATION, "max_tokens": 8, "seed": 1}),
    "completion": (TEXT, {"prompt": "Hi", "max_tokens": 8, "seed": 1}),
    "completion stream": (
        TEXT,
        {"prompt": "Hi", "max_tokens": 8, "seed": 1, "stream": True, "logprobs": 1},
    ),
    "response": ("/v1/responses", {"input": "Hi", "max_output_tokens": 8, "top_k": -1}),
}


@dataclass(frozen=True)
class Way:
    """A way to a server: a router, or none. `variable` names the environment variable with a Python
    that has the router, and `module` starts it. `drops` has the fields that it does not pass on."""

    name: str
    module: str = ""
    variable: str = ""
    drops: frozenset[str] = frozenset()

    @contextmanager
    def to(self, server: str, log: Path, *, key: str = KEY) -> Iterator[str]:
        """Give the URL at which clients reach the server at the URL `server`. Skips the test where
        the router is not installed."""
        if not self.module:
            yield server
            return

        class Router(ServerProcess):
            program = (self._python(), "-m", self.module)

        options = ["--policy", "round_robin", "--prometheus-port", str(free_port())]
        options += ["--api-key", key] if key else []
        router = Router(["--worker-urls", server, *options], log)
        try:
            router.wait_until_healthy(START_SECONDS)
            _wait_for_the_server(router.url)
            yield router.url
        finally:
            router.stop()

    def _python(self) -> str:
        path = os.environ.get(self.variable)
        if not path:
            pytest.skip(f"{self.variable} names no Python, or its folder, that has {self.name}")
        return str(Path(path) / "bin" / "python") if Path(path).is_dir() else path


WAYS = {
    way.name: way
    for way in (
        Way("direct"),
        Way(
            "sglang-router",
            "sglang_router.launch_router",
            "PACELINE_SGLANG_ROUTER",
            frozenset({"speculative", "user", "token ids", "inputs without a message"}),
        ),
        Way("vllm-router", "vllm_router.launch_router", "PACELINE_VLLM_ROUTER"),
    )
}
ROUTERS = [way for way in WAYS.values() if way.module]


def _wait_for_the_server(router: str) -> None:
    """A router is healthy before it has found the server behind it."""
    end = time.monotonic() + START_SECONDS
    while httpx.get(f"{router}/readiness", trust_env=False, timeout=20).status_code != 200:
        assert time.monotonic() < end, "the router does not find the server"
        time.sleep(0.05)


class _Noting(BaseHTTPRequestHandler):
    """Answers like a server with one model, and gives `note` what it is sent."""

    protocol_version = "HTTP/1.1"
    note: Callable[[Sent], None]

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.note((self.path, json.loads(body)))
        self._answer(200, {"id": "x", "object": "x", "created": 0, "model": "x", "choices": []})

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _answer(self, status: int, body: Any) -> None:
        written = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)


@contextmanager
def noting_server() -> Iterator[tuple[str, list[Sent]]]:
    """Give the URL of a server, and the list of what it has been sent so far."""
    sent: list[Sent] = []
    handler = type("Handler", (_Noting,), {"note": staticmethod(sent.append)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


def what_is_sent(way: Way, log: Path) -> dict[str, Sent]:
    """Return what a router makes of each of REQUESTS."""
    made: dict[str, Sent] = {}
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        noting_server() as (url, sent),
        way.to(url, log) as router,
        httpx.Client(base_url=router, headers=headers, trust_env=False, timeout=20) as http,
    ):
        for name, (path, body) in REQUESTS.items():
            answer = http.post(path, json={"model": "fake-model", **body})
            assert answer.status_code == 200, answer.text
            made[name] = sent[-1]
    return made


def recorded(way: Way) -> dict[str, Sent]:
    """Return what is kept of `what_is_sent()`."""
    kept = json.loads((RECORDED / f"{way.name}.json").read_text("utf-8"))
    return {name: (path, body) for name, (path, body) in kept.items()}


if __name__ == "__main__":
    for way in ROUTERS:
        with TemporaryDirectory() as folder:
            made = what_is_sent(way, Path(folder) / "log")
        text = json.dumps(made, indent=2)
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / f"{way.name}.json").write_text(text + "\n", "utf-8")
