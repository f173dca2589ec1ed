"""The bound on what a server holds, and engines that end while a request comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.async_engine import AsyncEngine, EngineDead

ONE = SamplingParams()


class IdleEngine:
    """As much of an Engine as AsyncEngine needs; it never gives a token."""

    has_work = False

    def __init__(self, *, max_num_seqs: int = 2, max_waiting: int = 2) -> None:
        self.config = SimpleNamespace(max_num_seqs=max_num_seqs, max_waiting=max_waiting)
        self.scheduler = SimpleNamespace(waiting=[])
        self.before_requests: Callable[[], None] = lambda: None

    def make_requests(
        self, prompt_ids: list[int], params: SamplingParams, *_: Any, request_id: str, **__: Any
    ) -> list[Request]:
        self.before_requests()
        ids = [f"{request_id}#{choice}" for choice in range(params.n)]
        return [Request(id=name, prompt_ids=prompt_ids, params=params) for name in ids]

    def add(self, requests: list[Request]) -> None:
        pass

    def abort(self, request_id: str) -> None:
        return None

    def check_integrity(self) -> None:
        pass


@pytest.mark.parametrize("crash", [True, False])
def test_an_engine_that_ends_during_a_submit_leaves_no_stream_open(crash: bool) -> None:
    idle = IdleEngine()
    engine = AsyncEngine(idle)  # type: ignore[arg-type]

    def end() -> None:
        if crash:
            idle.check_integrity = lambda: 1 / 0  # type: ignore[assignment,return-value]
            engine.abort(["nobody"])  # wakes the thread, which finds the fault
            engine._thread.join(10)
        else:
            engine.shutdown()

    async def test() -> None:
        engine.start()
        idle.before_requests = end
        with pytest.raises(EngineDead):
            engine.submit([1], ONE, request_id="a")

    asyncio.run(test())
