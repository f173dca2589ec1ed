"""Measure what a well-behaved client notices, in a process of its own.

`python -m tests.fuzz.bystander URL MODEL` streams completions without a pause, polls /health and
sends one-token requests until its standard input is closed, then prints `Noticed` as JSON. A
heartbeat records when this process itself did not get the CPU. That time is taken off each gap, so
that work of other processes of a test does not count as the server's.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.fuzz.connection import ConnectionDropped, HttpConnection, HttpReply

ROOT = Path(__file__).parents[2]  # where `tests` can be imported from
BEAT = 0.005  # seconds
NOTED = 0.1  # seconds of a gap that is kept with its time
STREAM = {"prompt": "a bystander", "max_tokens": 200, "ignore_eos": True, "stream": True}
ONE_TOKEN = {"prompt": "Hi", "max_tokens": 1}
COMPLETIONS = "/v1/completions"


@dataclass(slots=True)
class Noticed:
    """Waits in seconds. A gap is (what, start, end, seconds that count), by the monotonic clock."""

    events: int = 0
    streams: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    longest: dict[str, float] = field(default_factory=dict)
    p99: dict[str, float] = field(default_factory=dict)
    gaps: list[tuple[str, float, float, float]] = field(default_factory=list)
    starved: float = 0.0  # seconds without the CPU


class Bystander:
    """The clients and their clock. `on_first_stream` is called when a stream has ended."""

    def __init__(self, url: str, model: str, on_first_stream: Callable[[], None]) -> None:
        self._url, self._noticed = url, Noticed()
        self._on_first_stream, self._has_streamed = on_first_stream, False
        self._own = {"model": model, "cache_salt": "bystander"}
        self._late: list[tuple[float, float]] = []  # spans in which no beat came in time
        self._waits: dict[str, list[float]] = {"stream": [], "health": [], "one token": []}
        self._open: dict[str, float] = {}  # waits that have begun

    async def run(self, until: Awaitable[object]) -> Noticed:
        """Measures until `until` is done or the server is gone."""
        tasks = [
            asyncio.create_task(client())
            for client in (self._beats, self._streams, self._health, self._one_token)
        ]
        await asyncio.wait([asyncio.ensure_future(until), *tasks], return_when="FIRST_COMPLETED")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        noticed, now = self._noticed, time.monotonic()
        for what, start in self._open.items():  # a server that is stuck ends no wait
            self._note(what, start, now)
        noticed.longest = {name: max(waits, default=0.0) for name, waits in self._waits.items()}
        noticed.p99 = {
            name: sorted(waits)[int(0.99 * len(waits))] if waits else 0.0
            for name, waits in self._waits.items()
        }
        return noticed

    # -- inside -----------------------------------------------------------------------------------

    async def _beats(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            if now - last > 2 * BEAT:
                self._late.append((last + BEAT, now))
                self._noticed.starved += now - last - BEAT
            last = now

    async def _waited(self, what: str, start: float, end: float) -> None:
        """Notes a wait, once the heartbeat has told whether this process could have noticed."""
        await asyncio.sleep(2 * BEAT)
        self._note(what, start, end)

    def _note(self, what: str, start: float, end: float) -> None:
        overlaps = (min(end, b) - max(start, a) for a, b in reversed(self._late[-200:]))
        counted = end - start - sum(overlap for overlap in overlaps if overlap > 0)
        self._waits[what].append(counted)
        if counted > NOTED:
            self._noticed.gaps.append((what, start, end, counted))

    async def _streams(self) -> None:
        connection = HttpConnection(self._url)
        while True:
            times: list[float] = []

            def on_data(at: float, times: list[float] = times) -> None:
                times.append(at)
                self._open["stream"] = at

            await self._ask(connection, "stream", COMPLETIONS, {**STREAM, **self._own}, on_data)
            self._open.pop("stream", None)
            if not self._has_streamed:
                self._has_streamed = True
                self._on_first_stream()
            self._noticed.events += len(times)
            self._noticed.streams += len(times) > 1
            for before, after in pairwise(times):
                if after - before > 2 * BEAT:
                    await self._waited("stream", before, after)
                else:
                    self._waits["stream"].append(after - before)
            await asyncio.sleep(0)

    async def _health(self) -> None:
        connection = HttpConnection(self._url)
        while True:
            start = self._open["health"] = time.monotonic()
            await self._ask(connection, "health", "/health")
            del self._open["health"]
            await self._waited("health", start, time.monotonic())
            await asyncio.sleep(0.02)

    async def _one_token(self) -> None:
        connection = HttpConnection(self._url)
        while True:
            start = self._open["one token"] = time.monotonic()
            body = {**ONE_TOKEN, **self._own}
            reply = await self._ask(connection, "one token", COMPLETIONS, body)
            del self._open["one token"]
            if reply.status == 200:
                await self._waited("one token", start, time.monotonic())
            await asyncio.sleep(0.05)

    async def _ask(
        self,
        connection: HttpConnection,
        what: str,
        target: str,
        body: object = None,
        on_data: Callable[[float], None] | None = None,
    ) -> HttpReply:
        content = b"" if body is None else json.dumps(body).encode()
        reply = await connection.ask("POST" if content else "GET", target, content, on_data)
        name = f"{what} {reply.status}"
        self._noticed.answers[name] = self._noticed.answers.get(name, 0) + 1
        if reply.status != 200:
            await asyncio.sleep(0.1)
        return reply


class BystanderProcess:
    """A bystander that starts on construction, which returns when a first stream has ended."""

    def __init__(self, url: str, model: str) -> None:
        command = [sys.executable, "-m", "tests.fuzz.bystander", url, model]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self._process.stdout is not None
        self._told = self._process.stdout.readline()  # all of it where the server is gone

    def stop(self, seconds: float = 30.0) -> Noticed:
        """Return what the bystander has noticed until now, or until the server was gone."""
        out, _ = self._process.communicate(timeout=seconds)  # closes its standard input
        return Noticed(**json.loads(self._told + out))


async def _main(url: str, model: str) -> None:
    closed = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    noticed = await Bystander(url, model, lambda: print(flush=True)).run(closed)
    print(json.dumps(asdict(noticed)), flush=True)


if __name__ == "__main__":
    with suppress(ConnectionDropped, ConnectionError):
        asyncio.run(_main(*sys.argv[1:]))
