"""The deltas of one request, from the engine's thread to whoever reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, Self

from paceline.core import OutputDelta, Request

BUSY = -1  # in place of a count: nobody waits
Item = list[OutputDelta] | Exception  # what a stream yields or raises next


class DirectReader(Protocol):
    """Takes deltas without waiting: where it is `off_loop` on the engine's thread, else on the
    event loop."""

    @property
    def off_loop(self) -> bool: ...

    def is_ready(self) -> bool:
        """Return whether take() would not have to wait for anything."""

    def take(self, deltas: list[OutputDelta]) -> None: ...


class Stream:
    """Deltas of every choice of one request, as lists in the order they happened; it ends when
    every choice has finished. Leaving the `async with` block, or abort(), frees what still runs, at
    once.

    A reader that has nothing to wait for may read_directly: waking its task for each step takes
    several times as long as writing a token does. One that is `off_loop` reads on the engine's
    thread, and the event loop sleeps on: a loop that wakes takes a core from the next step.
    """

    def __init__(self, abort: Callable[[list[str]], object], requests: list[Request]) -> None:
        """`abort` ends requests by their ids, from the event loop."""
        self.requests, self._abort = requests, abort
        self._open = {request.id for request in requests}
        self._queue: asyncio.Queue[Item] = asyncio.Queue()
        self._reader: DirectReader | None = None
        self._handed = 0  # items for the event loop, counted on the engine's thread
        self._taken = 0  # of them, by the task that iterates
        self._settled = BUSY  # _taken when that task began to wait, with nothing left to do

    def read_directly(self, reader: DirectReader) -> None:
        """Give deltas to `reader` as soon as they are there, while it can take them.

        The iterator yields the others in their order: those that came while `reader` was not ready
        or the task that iterates was busy, and all lists in which a choice ends. It raises what
        `reader` raises.
        """
        self._reader = reader

    def offer(self, deltas: list[OutputDelta]) -> Item | None:
        """Give what a step added to a reader off the loop. Call it on the engine's thread, and
        put() what it returns on the event loop, in order."""
        reader = self._reader
        item: Item | None = deltas
        if reader is not None and reader.off_loop and self._settled == self._handed:
            item = _left_by(reader, deltas)
        if item is not None:
            self._handed += 1
        return item

    def put(self, item: Item) -> None:
        """Hand over what offer() returned. Call it on the event loop."""
        reader = self._reader
        left: Item | None = item
        is_next = self._settled != BUSY and self._queue.empty()
        if reader is not None and not reader.off_loop and is_next and isinstance(item, list):
            left = _left_by(reader, item)
        if left is None:
            self._taken += 1
            self._settled = self._taken
        else:
            self._queue.put_nowait(left)

    def abort(self) -> None:
        if self._open:
            self._abort(list(self._open))

    def __aiter__(self) -> AsyncIterator[list[OutputDelta]]:
        return self

    async def __anext__(self) -> list[OutputDelta]:
        if not self._open:
            raise StopAsyncIteration
        self._settled = self._taken
        try:
            deltas = await self._queue.get()
        finally:
            self._settled = BUSY
        self._taken += 1
        if isinstance(deltas, Exception):
            raise deltas
        self._open -= {delta.request_id for delta in deltas if delta.finished}
        return deltas

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()


def _left_by(reader: DirectReader, deltas: list[OutputDelta]) -> Item | None:
    """Return what the iterator must yield or raise: nothing where `reader` took the deltas. The
    end of a choice is for the iterator."""
    if any(delta.finished for delta in deltas):
        return deltas
    try:
        if not reader.is_ready():
            return deltas
        reader.take(deltas)
    except Exception as error:
        return error
    return None
