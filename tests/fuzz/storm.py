"""Sends the requests: many workers on one event loop, which yields the CPU to the server.

The requests are made in another process, and both run at a lower priority than the server and the
bystander, so that making and sending 4 MB does not look like a stall of the server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.bodies import COMPLETIONS, MODEL, Case, cases
from tests.fuzz.connection import ConnectionDropped, HttpConnection
from tests.fuzz.findings import Findings
from tests.fuzz.server import Life
from tests.fuzz.wire import Wire

HANG = 30.0  # seconds without an answer
CHUNK = 32  # requests that are made at once
SEND_NICE, MAKE_NICE = 5, 10
STUCK_SECONDS = 10.0  # without a token, after which a server is ended to see where it is
DEATH_SECONDS = 3.0  # in which a process that no longer answers must have ended to count as dead


class Storm:
    """All requests of a run. `life` is the server to send to, None while there is none; whoever
    restarts the server sets it."""

    def __init__(self, seed: int, indices: Sequence[int], workers: int, findings: Findings) -> None:
        self._seed, self._indices, self._workers = seed, indices, workers
        self._findings = findings
        self._stopped = False
        self.life: Life | None = None
        self.error: BaseException | None = None  # of the fuzzer itself
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Sends no more requests."""
        self._stopped = True

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    # -- on its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SEND_NICE)
        try:
            asyncio.run(self._send_all())
        except BaseException as error:
            self.error = error

    async def _send_all(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        queue: asyncio.Queue[Case | None] = asyncio.Queue(4 * CHUNK)
        with ProcessPoolExecutor(1, spawn, initializer=os.nice, initargs=(MAKE_NICE,)) as pool:
            wires = [asyncio.create_task(self._wire(number)) for number in range(3)]
            async with asyncio.TaskGroup() as group:
                group.create_task(self._make(pool, queue))
                for _ in range(self._workers):
                    group.create_task(self._work(queue))
            for task in wires:
                task.cancel()
            await asyncio.gather(*wires, return_exceptions=True)

    async def _make(self, pool: ProcessPoolExecutor, queue: asyncio.Queue[Case | None]) -> None:
        loop = asyncio.get_running_loop()
        chunks = [self._indices[at : at + CHUNK] for at in range(0, len(self._indices), CHUNK)]
        for chunk in chunks:
            if self._stopped:
                break
            for case in await loop.run_in_executor(pool, cases, self._seed, chunk):
                await queue.put(case)
        for _ in range(self._workers):
            await queue.put(None)

    async def _work(self, queue: asyncio.Queue[Case | None]) -> None:
        connection: HttpConnection | None = None
        while (case := await queue.get()) is not None:
            life = await self._alive()
            if life is None:
                continue
            if connection is None or connection.url != life.url:
                connection = HttpConnection(life.url)
            await self._send(connection, life, case)

    async def _send(self, connection: HttpConnection, life: Life, case: Case) -> None:
        findings, start = self._findings, time.monotonic()
        try:
            async with asyncio.timeout(HANG):
                reply = await connection.ask(case.method, case.target, case.content)
        except (OSError, ConnectionDropped) as error:  # a TimeoutError is an OSError
            end = time.monotonic()
            connection.close()
            if await self._died(life):
                findings.lost.setdefault(life.url, []).append(case)
            elif isinstance(error, TimeoutError):
                findings.hangs.append((case, f"no answer in {HANG:.0f} s"))
                if await self._stuck(life):
                    life.abort()
            else:
                findings.dropped.append((case, f"{type(error).__name__}: {error}"))
        else:
            end = time.monotonic()
            findings.take(case, reply)
        findings.spans.append((case.index, start, end))

    async def _wire(self, number: int) -> None:
        rng = random.Random(f"{self._seed}.wire.{number}")
        while True:
            life = await self._alive()
            if life is None:
                return
            try:
                self._findings.wire[await Wire(life.url, rng).act()] += 1
            except OSError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(rng.uniform(0, 0.3))

    async def _alive(self) -> Life | None:
        """The server to send to, None when nothing is to be sent any more."""
        while not self._stopped:
            if self.life is not None and not self.life.ended:
                return self.life
            await asyncio.sleep(0.05)
        return None

    async def _stuck(self, life: Life) -> bool:
        """Whether the server answers no small request either."""
        body = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 1}).encode()
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                while True:
                    reply = await HttpConnection(life.url).ask("POST", COMPLETIONS, body)
                    if reply.status != 429:
                        return False
                    await asyncio.sleep(0.2)
        except (OSError, ConnectionDropped):  # a TimeoutError is an OSError
            return True

    async def _died(self, life: Life) -> bool:
        end = time.monotonic() + DEATH_SECONDS
        while not life.ended and time.monotonic() < end:
            await asyncio.sleep(0.05)
        return life.ended
