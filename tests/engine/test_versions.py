"""Drafters of an engine that serves: loaded beside it, routed to, retired; no stream is harmed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest, SamplingParams, SpeculativeParams
from paceline.core.cohorts import Cohort
from paceline.core.request import FinishReason
from paceline.engine.async_engine import AsyncEngine, EngineDead
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.newcomers import LoadFailed, NoRoom
from paceline.engine.routes import RouteKey, Routes
from paceline.engine.versions import DrafterInUse, DrafterState, UnknownDrafter
from tests.engine.test_async_engine import LONG, PROMPT, SHORT, read, run, until
from tests.engine.tiny import tiny_model
from tests.models.dflash.tiny import write_drafter

TOGETHER = 6


@asynccontextmanager
async def running(drafter: Any = "ngram", **options: Any) -> AsyncIterator[AsyncEngine]:
    fixed = {"dtype": "bfloat16", "threads": 1, "draft_policy": "fixed"}
    fixed |= {"spare_drafter_memory": 2**24, **options}
    config = EngineConfig(model="tiny", drafter=drafter, **fixed)
    engine = AsyncEngine(build_engine(config, tiny_model("bfloat16")))
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


def names(engine: AsyncEngine) -> dict[str, DrafterState]:
    return {drafter.name: drafter.state for drafter in engine.versions.list()}


def sampling(index: int) -> SamplingParams:
    """Half of the requests at temperature 0, half above."""
    return SamplingParams(temperature=index % 2, seed=index, max_tokens=150, ignore_eos=True)


async def answers(engine: AsyncEngine, tag: str, count: int, **wishes: Any) -> list[list[int]]:
    """The tokens of `count` requests, of which TOGETHER run at once."""
    turn = asyncio.Semaphore(TOGETHER)

    async def one(index: int) -> list[int]:
        async with turn:
            prompt = [3 + index, 7, 9, 11] * 6
            wish = SpeculativeParams(**wishes)
            name = f"{tag}{index}"
            stream = engine.submit(prompt, sampling(index), wish, request_id=name)
            deltas = await read(stream)
            drafters = {delta.round.stream.drafter for delta in deltas if delta.round}
            assert drafters == {stream.requests[0].drafter}, "it keeps the drafter it began with"
            return [token for delta in deltas for token in delta.token_ids]

    return list(await asyncio.gather(*map(one, range(count))))


def test_swaps_under_load_change_no_token(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "drafter")

    async def test() -> None:
        async with running(max_num_seqs=8) as engine:
            versions = engine.versions
            plain = await answers(engine, "plain", 24, off=True)
            specs, swaps, before = ["suffix", f"hybrid:{folder}", f"dflash:{folder}"], 0, "ngram"
            while swaps < 2 * len(specs):
                drafted = asyncio.create_task(answers(engine, f"drafted{swaps}", 24))
                while not drafted.done():
                    name = f"v{swaps}"
                    await versions.load(name, specs[swaps % len(specs)])
                    versions.route(Routes(default=name))
                    await versions.retire(before)
                    before, swaps = name, swaps + 1
                assert await drafted == plain
            await until(lambda: names(engine) == {before: DrafterState.LIVE})
            assert engine.stats().speculation.accepted_tokens > 0
            assert engine.stats().drafter_failures == 0

    run(test)


def test_only_the_hand_over_runs_on_the_engines_thread_and_between_two_steps(
    tmp_path: Path,
) -> None:
    """So a swap holds up a request by no more than what the hand-over does, which loads nothing."""
    folder = write_drafter(tmp_path / "drafter")
    seen: list[tuple[str, str, bool]] = []
    stepping = threading.Event()

    def noted(what: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen.append((what, threading.current_thread().name, stepping.is_set()))
            return work(*arguments)

        return call

    async def test() -> None:
        async with running() as engine:
            inner, step = engine.engine, engine.engine.step

            def marked_step() -> Any:
                stepping.set()
                try:
                    return step()
                finally:
                    stepping.clear()

            inner.step = marked_step  # type: ignore[method-assign]
            builder = type(inner.builder)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(builder, "_build", noted("build", builder._build))
                for name in ("join", "leave"):
                    patch.setattr(inner.lineup, name, noted(name, getattr(inner.lineup, name)))
                stream = engine.submit(PROMPT, LONG, request_id="busy")
                await anext(aiter(stream))
                await engine.versions.load("new", f"dflash:{folder}")
                engine.versions.route(Routes(default="new"))
                await engine.versions.retire("ngram")
                stream.abort()
                await until(lambda: names(engine).keys() == {"new"})
        where = {(what, thread) for what, thread, _ in seen}
        assert where == {
            ("build", "paceline-background_0"),
            ("join", "paceline-engine"),
            ("leave", "paceline-engine"),
        }
        assert not any(within for what, _, within in seen if what != "build")

    run(test)


def test_a_retired_drafter_waits_for_its_last_request() -> None:
    async def test() -> None:
        async with running(("ngram", "suffix")) as engine:
            versions = engine.versions
            stream = engine.submit(PROMPT, LONG, request_id="long")
            await anext(aiter(stream))
            versions.route(Routes(default="suffix"))
            waiting = await versions.retire("ngram")
            assert waiting is not None and waiting.state is DrafterState.RETIRING
            assert versions.used()["ngram"] == 1
            assert await versions.retire("ngram") == waiting, "to ask twice changes nothing"
            with pytest.raises(InvalidRequest, match=r"speculative\.drafter: got 'ngram'"):
                wish = SpeculativeParams(drafter="ngram")
                engine.submit(PROMPT, SHORT, wish, request_id="late")
            with pytest.raises(
                InvalidRequest, match="default: got 'ngram'; expected one of: suffix"
            ):
                versions.route(Routes(default="ngram"))
            with pytest.raises(DrafterInUse, match=r"name: got 'ngram'.*one is retiring"):
                await versions.load("ngram", "ngram")
            new = engine.submit(PROMPT, SHORT, request_id="new")
            assert new.requests[0].drafter == "suffix"
            await read(new)
            assert names(engine)["ngram"] is DrafterState.RETIRING
            stream.abort()
            await until(lambda: names(engine) == {"suffix": DrafterState.LIVE})
            loaded = await versions.load("ngram", "ngram")
            assert loaded.state is DrafterState.LIVE, "the name is free again"
            assert await versions.retire("ngram") is None, "nobody had it: it left at once"
            assert names(engine).keys() == {"suffix"}

    run(test)


def test_what_is_used_cannot_leave() -> None:
    async def test() -> None:
        async with running(("a=ngram", "b=suffix", "c=suffix")) as engine:
            routes = {"default": "a", "cohorts": [{"shares": {"a": 0.5, "b": 0.5}}]}
            engine.versions.route(Routes.read(routes))
            for name, field in (("a", "default"), ("b", r"cohorts\[0\].shares.b")):
                with pytest.raises(DrafterInUse, match=f"no route names; {field} does"):
                    await engine.versions.retire(name)
            with pytest.raises(UnknownDrafter, match="name: got 'x'; expected one of: a, b, c"):
                await engine.versions.retire("x")
            assert await engine.versions.retire("c") is None
            assert set(names(engine).values()) == {DrafterState.LIVE}

    run(test)


def test_requests_follow_the_routes_of_their_cohort_and_session() -> None:
    async def test() -> None:
        async with running(("a=ngram", "b=suffix")) as engine:
            match = {"match": {"app": "chat"}, "shares": {"a": 0.5, "b": 0.5}}
            engine.versions.route(Routes.read({"default": "a", "cohorts": [match]}))

            def made(name: str, key: RouteKey | None, **wishes: Any) -> tuple[Any, ...]:
                stream = engine.submit(
                    PROMPT, SHORT, SpeculativeParams(**wishes), request_id=name, route_key=key
                )
                request = stream.requests[0]
                stream.abort()
                return request.drafter, request.drafter_version, request.route

            chat, code = Cohort("m", "chat"), Cohort("m", "code")
            got = {made(f"c{i}", RouteKey(chat, f"s{i % 8}")) for i in range(40)}
            assert got == {("a", "1", "route 0"), ("b", "1", "route 0")}
            same = {made(f"s{i}", RouteKey(chat, "s1")) for i in range(10)}
            assert len(same) == 1
            assert made("code", RouteKey(code, "s")) == ("a", "1", "default")
            assert made("none", None) == ("a", "1", "default")
            assert made("named", RouteKey(chat, "s"), drafter="b") == ("b", "1", "named")
            assert made("off", RouteKey(chat, "s"), off=True) == (None, None, None)

    run(test)


def test_a_bound_that_one_drafter_allows_is_no_error_with_another() -> None:
    """Whether a request is refused must not hang on the arm that its session has drawn."""

    async def test() -> None:
        async with running(
            ("short=ngram,max_draft_len=4", "long=ngram,max_draft_len=12")
        ) as engine:
            wish = SpeculativeParams(max_draft_len=10)
            stream = engine.submit(PROMPT, SHORT, wish, request_id="r")
            assert (stream.requests[0].drafter, stream.requests[0].max_draft_len) == ("short", 4)
            stream.abort()
            with pytest.raises(InvalidRequest, match="at most 12, which drafter 'long' can draft"):
                engine.submit(PROMPT, SHORT, SpeculativeParams(max_draft_len=13), request_id="x")
            with pytest.raises(InvalidRequest, match="at most 4, which drafter 'short' can draft"):
                named = SpeculativeParams(max_draft_len=10, drafter="short")
                engine.submit(PROMPT, SHORT, named, request_id="y")

    run(test)


def test_a_failed_load_leaves_no_trace_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = write_drafter(tmp_path / "large", layers=40)
    other = write_drafter(tmp_path / "other", target_layers=9)

    def no_memory(*_: object) -> None:
        raise MemoryError("no memory")

    async def test() -> None:
        async with running() as engine:
            versions, running_name = engine.versions, names(engine)
            stream = engine.submit(PROMPT, LONG, request_id="busy")
            first = await anext(aiter(stream))
            for name, spec, error in [
                ("new", "nonsense", InvalidRequest),
                ("new", "dflash:/no/such/folder", InvalidRequest),
                ("new", f"dflash:{other}", InvalidRequest),
                ("a/b", "suffix", InvalidRequest),
                ("routes", "suffix", InvalidRequest),
                ("ngram", "suffix", DrafterInUse),
                ("new", f"dflash:{large}", NoRoom),
            ]:
                with pytest.raises(error):
                    await versions.load(name, spec)
                assert names(engine) == running_name
            assert versions.counts.failed == 4, "those that began to load"
            with monkeypatch.context() as patch:
                patch.setattr(type(engine.engine.builder), "_build", no_memory)
                with pytest.raises(LoadFailed, match="no memory"):
                    await versions.load("new", "suffix")
            assert names(engine) == running_name and engine.drafters.keys() == {"ngram"}
            assert (await versions.load("new", "suffix")).state is DrafterState.LIVE
            ids = [token for delta in (*first, *await read(stream)) for token in delta.token_ids]
            assert engine.alive and stream.requests[0].finish_reason is FinishReason.LENGTH
            plain = engine.submit(PROMPT, LONG, SpeculativeParams(off=True), request_id="plain")
            assert ids == [token for delta in await read(plain) for token in delta.token_ids]

    run(test)


def test_memory_that_a_drafter_gives_back_is_there_for_the_next(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "drafter")

    async def test() -> None:
        async with running(f"d={folder}", spare_drafter_memory=0) as engine:
            with pytest.raises(NoRoom, match="are missing"):
                await engine.versions.load("e", f"dflash:{folder}")
            engine.versions.route(Routes())
            assert await engine.versions.retire("d") is None
            for name in ("e", "f"):
                loaded = await engine.versions.load(name, f"dflash:{folder}")
                assert loaded.memory.total == engine.engine.plan.drafter_bytes
                assert await engine.versions.retire(name) is None

    run(test)


def test_a_caller_that_leaves_does_not_leave_half_a_drafter() -> None:
    async def test() -> None:
        async with running() as engine:
            load = asyncio.create_task(engine.versions.load("new", "suffix"))
            await asyncio.sleep(0)
            load.cancel()
            with pytest.raises(asyncio.CancelledError):
                await load
            await until(lambda: names(engine).get("new") is DrafterState.LIVE)
            stream = engine.submit(PROMPT, SHORT, SpeculativeParams(drafter="new"), request_id="r")
            assert (await read(stream))[-1].finished

    run(test)


def test_loads_come_one_after_the_other() -> None:
    async def test() -> None:
        async with running() as engine:
            loads = [engine.versions.load(f"d{index}", "suffix") for index in range(4)]
            await asyncio.gather(*loads)
            assert list(names(engine)) == ["ngram", "d0", "d1", "d2", "d3"]
            assert engine.versions.counts.loaded == 4

    run(test)


def test_a_dead_engine_takes_no_drafter() -> None:
    async def test() -> None:
        async with running() as engine:

            def die() -> list[Any]:
                raise RuntimeError("gone")

            engine._send(die)
            await until(lambda: not engine.alive)
            with pytest.raises(EngineDead):
                await engine.versions.load("new", "suffix")
            assert names(engine).keys() == {"ngram"}

    run(test)
