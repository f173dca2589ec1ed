"""Engines behind their own HTTP server, which this process starts and asks.

The client shares the server's cores, so it does as little as it can: answers under load come whole,
and of a stream it notes when its lines came and reads them after the last one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from socket import socket
from typing import Any, ClassVar

START_SECONDS = 300.0


class Served:
    """A server of one model; a subclass knows its command and its fields."""

    path: ClassVar[str]

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        with socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._options, end = options, time.monotonic() + START_SECONDS
        where = ["--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen([*self.command(model, options), *where])
        try:
            while not self._healthy():
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server of {model} did not start")
                time.sleep(0.1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def generate(
        self, prompts: list[list[int]], max_tokens: list[int], ignore_eos: bool = False, **more: Any
    ) -> list[list[int]]:
        """Send all prompts at once; the server queues those that it has no place for."""
        if ignore_eos:
            raise ValueError("servers are asked for texts up to their ends")

        def answer(prompt: list[int], length: int) -> list[int]:
            with_answer = self._post(self.body(prompt, length, **more))
            return self.tokens(json.loads(with_answer.read()))

        with ThreadPoolExecutor(len(prompts)) as clients:
            return list(clients.map(answer, prompts, max_tokens))

    def stream(self, prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        start, lines = time.perf_counter(), []
        response = self._post({**self.body(prompt, max_tokens, **more), "stream": True})
        for line in response:
            lines.append((time.perf_counter() - start, line))
        tokens: list[int] = []
        marks = []
        for at, line in lines:
            if line.startswith(b"data: {"):
                tokens += self.tokens(json.loads(line[6:]))
                marks.append((at, len(tokens)))
        return {"tokens": tokens, "marks": marks}

    def _post(self, body: dict[str, Any]) -> HTTPResponse:
        connection = HTTPConnection("127.0.0.1", self._port)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self.path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read()!r}")
        return response

    def _healthy(self) -> bool:
        try:
            connection = HTTPConnection("127.0.0.1", self._port, timeout=2)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def command(self, model: str, options: dict[str, Any]) -> list[str]:
        raise NotImplementedError

    def body(self, prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        raise NotImplementedError

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        """Return the token ids of an answer, or of a part of a streamed one."""
        raise NotImplementedError


class LlamaServer(Served):
    """llama-server over a GGUF file: `binary`, `slots`, `context` of each, `flags`."""

    path = "/completion"

    def command(self, model: str, options: dict[str, Any]) -> list[str]:
        threads, slots = str(len(os.sched_getaffinity(0))), options["slots"]
        return [
            options["binary"], "-m", model, "-t", threads, "-tb", threads, "-np", str(slots),
            "-c", str(slots * options["context"]), "--cache-ram", "0", *options.get("flags", ()),
        ]  # fmt: skip

    def body(self, prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "prompt": prompt, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False,
            "return_tokens": True, **more,
        }  # fmt: skip

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return list(answer.get("tokens", ()))


class PacelineServer(Served):
    """`paceline serve`, with `flags`."""

    path = "/v1/completions"

    def command(self, model: str, options: dict[str, Any]) -> list[str]:
        return [
            sys.executable, "-m", "paceline.cli", "serve", model, "--no-prefix-cache",
            "--log-level", "warning", *options.get("flags", ()),
        ]  # fmt: skip

    def body(self, prompt: list[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "model": "", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "return_token_ids": True, **more,
        }  # fmt: skip

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return [token for choice in answer["choices"] for token in choice.get("token_ids") or ()]
