"""Fake workers and the client that the endpoint's tests ask through Envoy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from paceline.bench.load.server_process import free_port
from paceline.core import PacelineError
from paceline.endpoint.description import EndpointDescription, ReplicaDescription
from paceline.endpoint.envoy.program import find_envoy
from paceline.endpoint.envoy.routing import DRAFTER_HEADER
from paceline.endpoint.gateway import EnvoyGateway
from paceline.engine.routes import Routes

FAKE = str(Path(__file__).with_name("fake_worker.py"))
PATIENCE = 20.0
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "tide"}]}


def has_envoy() -> bool:
    try:
        find_envoy()
    except PacelineError:
        return False
    return True


needs_envoy = pytest.mark.skipif(not has_envoy(), reason="Envoy is not installed")


def comes_true(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


class Worker:
    """A fake engine that runs until it is killed."""

    def __init__(self, name: str) -> None:
        self.name, self.port = name, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, FAKE, "serve", "target", "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        assert comes_true(self.answers)

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = httpx.get(f"{self.url}/counts", trust_env=False).json()
        return counts

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def described(self) -> ReplicaDescription:
        return ReplicaDescription(name=self.name, url=self.url)


@contextmanager
def workers(*names: str) -> Iterator[list[Worker]]:
    running = [Worker(name) for name in names]
    try:
        yield running
    finally:
        for worker in running:
            worker.kill()


@contextmanager
def opened(folder: Path, description: EndpointDescription) -> Iterator[EnvoyGateway]:
    """Envoy, which ends with the test."""
    gateway = EnvoyGateway(folder)
    assert gateway.open(description)
    try:
        yield gateway
    finally:
        gateway.close(0)


def described(running: Sequence[Worker], routes: Routes, **more: Any) -> EndpointDescription:
    return EndpointDescription(
        listen=f"127.0.0.1:{free_port()}",
        replicas=[worker.described() for worker in running],
        routes=routes,
        **more,
    )


class Asker:
    """Asks through Envoy."""

    def __init__(self, listen: str) -> None:
        self._http = httpx.Client(
            base_url=f"http://{listen}", trust_env=False, timeout=PATIENCE,
            limits=httpx.Limits(max_connections=None),
        )  # fmt: skip

    def drafter(self, **headers: str) -> str:
        """Return the drafter that serves a request with these headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self._http.post("/v1/chat/completions", json=QUESTION, headers=named)
        assert response.status_code == 200, response.text
        return response.headers[DRAFTER_HEADER]

    def arms(self, sessions: int) -> list[str]:
        """Return the drafter of each session."""
        return [self.drafter(x_session_id=f"session {place}") for place in range(sessions)]

    def chosen(self, drafter: str, sessions: int) -> set[int]:
        """Return the sessions that a drafter gets."""
        return {place for place, arm in enumerate(self.arms(sessions)) if arm == drafter}

    def response(self, **fields: Any) -> httpx.Response:
        return self._http.post("/v1/chat/completions", json={**QUESTION, **fields})

    @contextmanager
    def stream(
        self, tokens: int, delay: float, **headers: str
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield the events of a streamed answer as they come."""
        body = {**QUESTION, "stream": True, "max_tokens": tokens, "delay": delay}
        with self._http.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as answer:
            assert answer.status_code == 200
            yield (
                json.loads(line.removeprefix("data: "))
                for line in answer.iter_lines()
                if line.startswith("data: {")
            )


class AskingThreads:
    """Threads that ask until the end of a `with` block: each runs `_ask` with its number, which
    looks at `_ended` before each request."""

    def __init__(self, threads: int) -> None:
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(threads)]

    def _ask(self, number: int) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


class Load(AskingThreads):
    """Requests from several threads until it ends; `statuses` and `drafters` count the answers."""

    def __init__(self, listen: str, threads: int = 4, **fields: Any) -> None:
        super().__init__(threads)
        self.statuses: Counter[str] = Counter()
        self.drafters: Counter[str] = Counter()
        self.texts: set[str] = set()
        self._listen, self._fields = listen, fields

    def _ask(self, number: int) -> None:
        with httpx.Client(base_url=f"http://{self._listen}", trust_env=False, timeout=60) as http:
            asked = 0
            while not self._ended.is_set():
                asked += 1
                headers = {"X-Session-ID": f"{number}-{asked}"}
                body = {**QUESTION, **self._fields}
                try:
                    answer = http.post("/v1/chat/completions", json=body, headers=headers)
                except httpx.HTTPError as error:
                    self.statuses[type(error).__name__] += 1
                    continue
                self.statuses[str(answer.status_code)] += 1
                self.drafters[answer.headers.get(DRAFTER_HEADER, "")] += 1
                if answer.status_code == 200:
                    self.texts.add(answer.json()["choices"][0]["message"]["content"])


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
