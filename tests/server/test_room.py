"""The bound on what a server holds, and engines that end while a request comes in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.async_engine import AsyncEngine, EngineDead
from paceline.engine.config import EngineStats
from paceline.server.app import create_app
from paceline.server.prompts import PromptEncoder
from paceline.server.settings import ServerSettings

from .conftest import TEXT, in_process
from .fake import FakeAsyncEngine

ONE = SamplingParams()


class IdleEngine:
    """As much of an Engine as AsyncEngine needs; it never gives a token."""

    has_work, model_name, tokenizer = False, "idle", None
    max_model_len, vocab_size = 64, 10
    drafters, default_drafter = {}, None

    def __init__(self, *, max_num_seqs: int = 2, max_waiting: int = 2) -> None:
        self.config = SimpleNamespace(max_num_seqs=max_num_seqs, max_waiting=max_waiting)
        self.scheduler = SimpleNamespace(running=[])
        self.grammars = SimpleNamespace(compiler=SimpleNamespace(close=lambda: None))
        self.before_requests: Callable[[], None] = lambda: None
        self.admission = self

    def stats(self) -> EngineStats:
        return EngineStats()

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


def test_prompts_that_are_being_encoded_have_their_place_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = threading.Event()

    def slow(*_: object) -> list[int]:
        assert free.wait(20)
        return [1]

    async def test() -> None:
        async with in_process(create_app(FakeAsyncEngine(capacity=2), ServerSettings())) as http:
            ask = partial(http.post, "/v1/completions", json=TEXT)
            first = [asyncio.create_task(ask()) for _ in range(2)]
            await asyncio.sleep(0.1)
            late = asyncio.create_task(ask())
            await asyncio.wait([late], timeout=1)
            await asyncio.sleep(0.06)  # the first two are being encoded: `late` found no place
            free.set()
            assert (await late).status_code == 429
            for answer in await asyncio.gather(*first):
                times = answer.json()["metrics"]
                assert times["e2e_latency"] >= times["ttft"] > 0.05  # from before the encoding

    monkeypatch.setattr(PromptEncoder, "_text", slow)
    asyncio.run(asyncio.wait_for(test(), 20))
