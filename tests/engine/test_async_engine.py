"""The engine behind asyncio: streams, aborts, a bounded queue, a clean end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from paceline.core import FinishReason, InvalidRequest, OutputDelta, QueueFull, SamplingParams
from paceline.engine.async_engine import AsyncEngine, EngineDead
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.machine import usable_cores
from tests.engine.faults import FaultySpans
from tests.engine.tiny import tiny_model

PROMPT = [1, 2, 3, 4, 5]
LONG = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def tiny_engine(*, threads: int = 1, **options: object) -> Engine:
    config = EngineConfig(
        model="tiny", drafter="ngram", dtype="bfloat16", threads=threads, **options
    )
    return build_engine(config, tiny_model("bfloat16"))


@asynccontextmanager
async def running(**options: object) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(tiny_engine(**options))
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


async def read(stream: AsyncIterator[list[OutputDelta]]) -> list[OutputDelta]:
    return [delta async for deltas in stream for delta in deltas]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), timeout=60))


def test_all_choices_stream_and_end() -> None:
    async def test() -> None:
        async with running() as engine:
            params = SamplingParams(temperature=1, max_tokens=7, ignore_eos=True, n=3, seed=1)
            deltas = await read(engine.submit(PROMPT, params, request_id="a"))
            for choice in range(3):
                mine = [d for d in deltas if d.choice == choice]
                assert sum(len(d.token_ids) for d in mine) == 7
                assert mine[-1].finish_reason is FinishReason.LENGTH

    run(test)


@pytest.mark.skipif(usable_cores() < 2, reason="one core: OpenMP keeps no other thread")
def test_the_threads_that_helped_to_build_an_engine_end_when_it_starts() -> None:
    """Two teams of threads on the same cores make each other sleep: over HTTP a step took 1.15
    times as long."""

    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    engine = AsyncEngine(tiny_engine(threads=2))
    before = threads()
    engine.start()
    assert len(before - threads()) == 1
    engine.shutdown()


def test_leaving_the_stream_frees_the_request_at_once() -> None:
    async def test() -> None:
        async with running() as engine:
            async with engine.submit(PROMPT, LONG, request_id="a") as stream:
                await anext(stream)
                assert engine.stats().running == 1
            await until(lambda: engine.stats().running == 0)
            assert engine.stats().kv_usage == 0
            assert await read(engine.submit(PROMPT, SHORT, request_id="b"))

    run(test)


def test_past_the_bound_requests_are_refused_and_running_ones_go_on() -> None:
    async def test() -> None:
        async with running(max_num_seqs=1, max_waiting=1) as engine:
            streams = [engine.submit(PROMPT, LONG, request_id=str(i)) for i in range(2)]
            with pytest.raises(QueueFull):
                engine.submit(PROMPT, SHORT, request_id="late")
            for stream in streams:
                assert (await read(stream))[-1].finish_reason is FinishReason.LENGTH
            assert await read(engine.submit(PROMPT, SHORT, request_id="now"))

    run(test)


def test_a_bad_request_is_refused_by_field_and_harms_nobody() -> None:
    async def test() -> None:
        async with running(max_model_len=64) as engine:
            stream = engine.submit(PROMPT, SHORT, request_id="good")
            for prompt, params, field in [
                ([], SHORT, "prompt"),
                ([1] * 64, SHORT, "prompt"),
                ([256], SHORT, "prompt"),
                (PROMPT, SamplingParams(max_tokens=60), "max_tokens"),
                (PROMPT, SamplingParams(logit_bias={256: 1.0}), "logit_bias"),
                (PROMPT, SamplingParams(stop_token_ids=(900,)), "stop_token_ids"),
            ]:
                with pytest.raises(InvalidRequest) as caught:
                    engine.submit(prompt, params, request_id="bad")
                assert caught.value.field == field
            assert sum(len(d.token_ids) for d in await read(stream)) == 5

    run(test)


def test_drain_lets_the_running_finish_and_admits_nobody() -> None:
    async def test() -> None:
        async with running() as engine:
            stream = engine.submit(PROMPT, SHORT, request_id="a")
            reading = asyncio.create_task(read(stream))
            await engine.drain(timeout=10)
            assert (await reading)[-1].finish_reason is FinishReason.LENGTH
            with pytest.raises(QueueFull):
                engine.submit(PROMPT, SHORT, request_id="b")

    run(test)


def test_drain_aborts_what_outlasts_its_time() -> None:
    async def test() -> None:
        async with running() as engine:
            stream = engine.submit(PROMPT, LONG, request_id="a")
            reading = asyncio.create_task(read(stream))
            await engine.drain(timeout=0.02)
            assert (await reading)[-1].finish_reason is FinishReason.ABORT

    run(test)


def test_a_step_that_fails_ends_its_streams_and_the_engine_goes_on() -> None:
    async def test() -> None:
        async with running() as engine:
            stream = engine.submit(PROMPT, LONG, request_id="a")
            await anext(stream)
            forward = engine.engine.runner.forward

            def fail_once(*args: object, logits: bool) -> object:
                engine.engine.runner.forward = forward
                raise RuntimeError("a spark")

            engine.engine.runner.forward = fail_once
            deltas = await read(stream)
            assert deltas[-1].finish_reason is FinishReason.ERROR
            assert "a spark" in (deltas[-1].error or "")
            after = await read(engine.submit(PROMPT, SHORT, request_id="b"))
            assert sum(len(delta.token_ids) for delta in after) == 5
            assert engine.stats().failed_steps == 1

    run(test)


def test_deltas_that_cannot_be_delivered_end_their_streams_and_no_other() -> None:
    async def test() -> None:
        async with running() as engine:
            stream = engine.submit(PROMPT, LONG, request_id="a")
            await anext(stream)
            engine.engine.record(FaultySpans("deliver", 1))
            deltas = await read(stream)
            assert deltas[-1].finish_reason is FinishReason.ERROR
            assert await read(engine.submit(PROMPT, SHORT, request_id="b"))
            assert engine.alive and engine.stats().running == 0

    run(test)


def test_a_request_that_cannot_be_opened_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running() as engine:
            with monkeypatch.context() as patch:
                patch.setattr(engine.engine.grammars, "open", lambda request: 1 / 0)
                deltas = await read(engine.submit(PROMPT, SHORT, request_id="a"))
                assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR]
            assert await read(engine.submit(PROMPT, SHORT, request_id="b"))

    run(test)


def test_a_crash_reaches_every_stream_and_later_requests() -> None:
    async def test() -> None:
        async with running() as engine:
            stream = engine.submit(PROMPT, LONG, request_id="a")
            await anext(stream)

            def crash(*_: object) -> None:
                raise RuntimeError("the machine is on fire")

            engine.engine.runner.network.forward = crash
            deltas = await read(stream)
            assert deltas[-1].finish_reason is FinishReason.ERROR
            assert "on fire" in (deltas[-1].error or "")
            assert "on fire" in str(await engine.died())
            await until(lambda: not engine.alive)
            with pytest.raises(EngineDead):
                engine.submit(PROMPT, SHORT, request_id="b")

    run(test)
