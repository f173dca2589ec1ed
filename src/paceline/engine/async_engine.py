"""The engine on a thread of its own, its deltas handed to asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from paceline.core import (
    FinishReason,
    OutputDelta,
    PacelineError,
    QueueFull,
    SamplingParams,
    SpeculativeParams,
)
from paceline.core.spans import Spans
from paceline.drafters.base import Drafter
from paceline.engine.config import EngineStats
from paceline.engine.engine import Engine
from paceline.engine.reservations import Reservation, StreamLimit
from paceline.engine.routes import RouteKey
from paceline.engine.stream import Item, Stream
from paceline.engine.versions import Versions
from paceline.kernels.openmp import release_threads

log = logging.getLogger(__name__)
T = TypeVar("T")
ALIVE_EVERY = 0.5  # seconds between two looks at whether the thread that work was given to lives
STATS_EVERY = 0.02  # seconds between two snapshots of the statistics while the same streams run


class EngineDead(PacelineError):
    """The engine's thread has stopped on an error; nothing can be served until a restart."""


class AsyncEngine:
    """Runs an Engine on its own thread and hands its deltas to asyncio.

    submit() and Stream belong to the event loop. Only the engine's own thread touches the engine;
    it hands out immutable deltas, and copies of its statistics. Its admission is a value that does
    not change: the event loop makes requests by it, and puts another one in its place.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.config, self.model_name = engine.config, engine.model_name
        self.tokenizer = engine.tokenizer
        self.max_model_len, self.vocab_size = engine.max_model_len, engine.vocab_size
        self.compiler = engine.grammars.compiler  # has a thread of its own
        self._stats, self._stats_taken = engine.stats(), time.monotonic()
        self.error: BaseException | None = None
        self._on_death: list[Callable[[], object]] = []
        self.draining = False
        self._inbox: deque[Callable[[], list[OutputDelta]]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._streams: dict[str, tuple[asyncio.AbstractEventLoop, Stream]] = {}
        self._limit = StreamLimit(
            engine.config.max_waiting + engine.config.max_num_seqs,
            held=lambda: len(self._streams),
            running=lambda: self._stats.running,
        )
        self.versions = Versions(engine, self.between_steps, self._count_streams)
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread. Objects made so far stay: the collector need not walk them. The caller
        has built the engine and computes no more: its OpenMP threads end."""
        gc.collect()
        gc.freeze()
        release_threads()
        self._thread.start()

    @property
    def drafters(self) -> Mapping[str, Drafter]:
        """The drafters that requests may name. Another mapping takes its place when they change."""
        return self.engine.admission.drafters

    @property
    def default_drafter(self) -> str | None:
        return self.engine.default_drafter

    @property
    def spans(self) -> Spans:
        return self.engine.spans

    @property
    def alive(self) -> bool:
        return self.error is None and self._thread.is_alive()

    async def died(self) -> BaseException:
        """Wait until the thread stops on an error, and return that error."""
        loop, dead = asyncio.get_running_loop(), asyncio.Event()
        with self._wake:
            if self.error is not None:
                return self.error
            self._on_death.append(lambda: loop.call_soon_threadsafe(dead.set))
        await dead.wait()
        assert self.error is not None
        return self.error

    def reserve(self, n: int, prompts: int = 1) -> Reservation:
        """Reserve places for `n` streams of each prompt, before the work of encoding those. Use the
        reservation as a context manager, and submit within.

        Raises InvalidRequest naming what can never fit, QueueFull past the bound, EngineDead.
        """
        self._check_open()
        return self._limit.reserve(n, prompts)

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        speculative: SpeculativeParams | None = None,
        *,
        request_id: str,
        salt: bytes = b"",
        share_answers: bool = True,
        key: str = "",
        cohort: str = "",
        route_key: RouteKey | None = None,
        explain: bool = False,
        reservation: Reservation | None = None,
    ) -> Stream:
        """Queues a request, one stream per choice. Call it on the event loop.

        Its times count from the `reservation`, or from now. Raises InvalidRequest naming
        the field, QueueFull past the bound, EngineDead after a crash.
        """
        self._check_open()
        requests = self.engine.make_requests(
            prompt_ids,
            params,
            speculative,
            request_id=request_id,
            salt=salt,
            share_answers=share_answers,
            key=key,
            cohort=cohort,
            route_key=route_key,
            explain=explain,
        )
        stream = Stream(self.abort, requests)
        loop = asyncio.get_running_loop()
        # Under the lock that the thread ends under: a stream it does not know of would never end.
        with self._wake:
            self._check_open()
            reservation = reservation or self._limit.reserve(len(requests))
            reservation.take(len(requests))
            for request in requests:
                request.arrival = reservation.arrival
                self._streams[request.id] = (loop, stream)
            self._send(lambda: self.engine.add(requests))
        return stream

    def abort(self, request_ids: list[str]) -> None:
        """Ends streams at once, from any thread; those that have ended already are left alone."""

        def do() -> list[OutputDelta]:
            deltas = [self.engine.abort(request_id) for request_id in request_ids]
            return [delta for delta in deltas if delta is not None]

        self._send(do)

    async def between_steps(self, work: Callable[[], T]) -> T:
        """Run `work`, which is short, on the engine's thread between two steps, and return or raise
        what it does. Call it on the event loop. Raises EngineDead where the thread ends before."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def do() -> list[OutputDelta]:
            try:
                tell: Callable[[], object] = partial(result.set_result, work())
            except Exception as error:
                tell = partial(result.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(lambda: result.done() or tell())
            return []

        self._send(do)
        while not result.done():
            await asyncio.wait([result], timeout=ALIVE_EVERY)
            if not (result.done() or self.alive):
                raise EngineDead(f"the engine has stopped: {self.error!r}")
        return result.result()

    def _count_streams(self) -> Counter[str | None]:
        """Count the streams that run or wait by their drafter."""
        held = list(self._streams.items())
        return Counter(
            request.drafter
            for name, (_, stream) in held
            for request in stream.requests
            if request.id == name
        )

    def stats(self) -> EngineStats:
        """The latest snapshot, from any thread: at most STATS_EVERY seconds or a step old."""
        return self._stats

    async def drain(self, timeout: float) -> None:
        """Stops admitting, waits up to `timeout` seconds for what runs, then aborts the rest."""
        self.draining = True
        await self._until_empty(timeout)
        self.abort(list(self._streams))
        await self._until_empty(1.0)

    async def _until_empty(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while self._streams and self.alive and time.monotonic() < end:
            await asyncio.sleep(0.01)

    def shutdown(self) -> None:
        """Stops the thread; streams still open end with finish reason `abort`."""
        with self._wake:  # whatever comes later is refused, whatever came before is aborted
            self._stopping = True
            self.abort(list(self._streams))
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        self.engine.grammars.compiler.close()

    def _check_open(self) -> None:
        if self._stopping or not self.alive:
            raise EngineDead(f"the engine has stopped: {self.error!r}")
        if self.draining:
            raise QueueFull(len(self._streams), retry_after=30.0)

    def _send(self, job: Callable[[], list[OutputDelta]]) -> None:
        with self._wake:
            self._inbox.append(job)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self._stopping or self.engine.has_work):
                        self.engine.check_integrity()
                        self._wake.wait()
                    jobs = list(self._inbox)
                    self._inbox.clear()
                    if self._stopping and not jobs:
                        return
                deltas = [delta for job in jobs for delta in job()]
                if self.engine.has_work:
                    deltas += self.engine.step()
                self.versions.note_left()
                self._note_stats(bool(jobs) or any(delta.finished for delta in deltas))
                self._deliver_or_fail(deltas)
        except BaseException as error:
            log.exception("the engine's thread has stopped")
            with self._wake:
                self.error = error
                watchers = list(self._on_death)
            self._end_streams(list(self._streams), error)
            for tell in watchers:
                with contextlib.suppress(RuntimeError):  # that loop has closed
                    tell()

    def _note_stats(self, changed: bool) -> None:
        """Take a snapshot where streams began or ended, else every STATS_EVERY seconds: it takes
        as long as some other parts of a step."""
        now = time.monotonic()
        if changed or not self.engine.has_work or now - self._stats_taken >= STATS_EVERY:
            self._stats, self._stats_taken = self.engine.stats(), now

    def _deliver_or_fail(self, deltas: list[OutputDelta]) -> None:
        """Deliver what a step gave. An error on the way ends the streams that it was for."""
        if not deltas:
            return
        try:
            with self.engine.spans("deliver"):
                self._deliver(deltas)
        except Exception as error:
            names = [delta.request_id for delta in deltas]
            self.engine.fail(names, error)
            self._end_streams([name for name in names if name in self._streams], error)

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        """Offer each stream what a step added to it. Make at most one call into each event loop,
        however many streams it feeds, and none where readers took everything."""
        by_stream: dict[Stream, list[OutputDelta]] = {}
        loops: dict[Stream, asyncio.AbstractEventLoop] = {}
        for delta in deltas:
            entry = self._streams.get(delta.request_id)
            if entry is not None:
                loop, stream = entry
                loops[stream] = loop
                by_stream.setdefault(stream, []).append(delta)
        left: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = {}
        for stream, added in by_stream.items():
            item = stream.offer(added)
            if item is not None:
                left.setdefault(loops[stream], []).append((stream, item))
        for loop, items in left.items():
            try:
                loop.call_soon_threadsafe(_hand_over, items)
            except RuntimeError:  # the loop has closed: nobody is listening any more
                self.abort([request.id for stream, _ in items for request in stream.requests])
        for delta in deltas:
            if delta.finished:
                self._streams.pop(delta.request_id, None)

    def _end_streams(self, request_ids: list[str], error: BaseException) -> None:
        deltas = [
            OutputDelta(
                request_id=request_id,
                choice=int(request_id.rsplit("#", 1)[1]),
                finish_reason=FinishReason.ERROR,
                error=repr(error),
            )
            for request_id in request_ids
        ]
        self._deliver(deltas)


def _hand_over(items: list[tuple[Stream, Item]]) -> None:
    for stream, item in items:
        stream.put(item)
