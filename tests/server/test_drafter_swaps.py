"""Drafters are exchanged while requests stream: no token changes, and memory stays flat."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.engine.async_engine import AsyncEngine
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from tests.engine.test_lineup import held_by, megabytes
from tests.models.dflash.tiny import write_drafter

from .conftest import eventually
from .test_drafters_api import ADMINS, PATH, ROUTES, served
from .test_real_engine import TEXT, clients, tiny_engine


async def tokens(http: httpx.AsyncClient, count: int, **changes: Any) -> list[list[int]]:
    """The token ids of streams, of which six run at once, half of them sampled."""
    turn = asyncio.Semaphore(6)

    async def one(index: int) -> list[int]:
        body = {
            **TEXT,
            "prompt": [3 + index, 7, 9, 11] * 6,
            "max_tokens": 120,
            "temperature": index % 2,
            "seed": index,
            **changes,
        }
        async with turn:
            answer = await http.post("/v1/completions", json={**body, "return_token_ids": True})
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        assert len(ids) == body["max_tokens"], "cut short"
        return ids

    return list(await asyncio.gather(*map(one, range(count))))


async def swap(http: httpx.AsyncClient, before: str, name: str, spec: str) -> str:
    """Give all new requests another drafter, and return its name."""
    assert (await http.post(PATH, json={"name": name, "spec": spec})).status_code == 201
    assert (await http.put(ROUTES, json={"default": name})).status_code == 200
    assert (await http.delete(f"{PATH}/{before}")).status_code in (200, 202)
    return name


def swapped(
    specs: list[str], make: Callable[..., AsyncEngine] = tiny_engine, **changes: Any
) -> tuple[list[list[int]], list[list[int]], int]:
    """The tokens of streams without drafts, of the same while every drafter is swapped in twice,
    and the number of swaps."""

    async def test(url: str) -> tuple[list[list[int]], list[list[int]], int]:
        async with clients(url) as http:
            http.headers.update(ADMINS)
            plain = await tokens(http, 24, speculative="off")
            drafted: list[list[int]] = []
            swaps, before = 0, "ngram"
            while swaps < 2 * len(specs):
                streams = asyncio.create_task(tokens(http, 24, **changes))
                while not streams.done():
                    spec = specs[swaps % len(specs)]
                    before, swaps = await swap(http, before, f"v{swaps}", spec), swaps + 1
                drafted += await streams
            return plain * (len(drafted) // len(plain)), drafted, swaps

    settings = {"served_model_names": ("tiny",)}
    with served(max_num_seqs=8, draft_policy="fixed", make=make, settings=settings) as (
        engine,
        server,
        _,
    ):
        plain, drafted, swaps = asyncio.run(test(server.url))
        assert engine.alive and engine.stats().drafter_failures == 0
        assert engine.stats().speculation.accepted_tokens > 0
        eventually(lambda: len(engine.versions.list()) == 1)
    return plain, drafted, swaps


def specs_of(folder: Path) -> list[str]:
    write_drafter(folder)
    return ["suffix", f"hybrid:{folder}", f"dflash:{folder}", "ngram"]


def test_swaps_under_load_fail_no_request_and_change_no_token(tmp_path: Path) -> None:
    plain, drafted, swaps = swapped(specs_of(tmp_path / "drafter"))
    assert drafted == plain
    assert swaps >= 6


def test_the_comparison_finds_tokens_that_differ(tmp_path: Path) -> None:
    """The control: streams that may differ from the target's do, and are found."""
    plain, drafted, _ = swapped(specs_of(tmp_path / "drafter"), speculative={"lossy": 0.9})
    assert len(drafted) == len(plain) and drafted != plain


def real_engine(**options: Any) -> AsyncEngine:
    options = {**options, "spare_drafter_memory": 2**30, "kv_memory": 2**29}
    config = EngineConfig(model="smollm2-135m", max_model_len=1024, **options)
    return AsyncEngine(build_engine(config))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.model
def test_swaps_of_the_shipped_drafter_change_no_token_of_the_real_model() -> None:
    plain, drafted, swaps = swapped(["auto", "suffix", "auto"], real_engine)
    assert drafted == plain
    assert swaps >= 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_two_hundred_swaps_under_load(tmp_path: Path) -> None:
    """Each drafter takes 5 MB, and each swap waits until the one before has left."""
    wide = {"intermediate_size": 6_000}
    folders = [write_drafter(tmp_path / str(seed), seed=seed, **wide) for seed in (1, 2)]
    specs = [f"dflash:{folders[0]}", f"hybrid:{folders[1]}", f"hybrid:{folders[0]}"]
    memory: list[float] = []
    alive: list[weakref.ref[Any]] = []

    async def traffic(http: httpx.AsyncClient, done: asyncio.Event) -> int:
        asked = 0
        while not done.is_set():
            assert len(await tokens(http, 6, max_tokens=24)) == 6
            asked += 6
        return asked

    async def held_at_rest(engine: AsyncEngine) -> dict[str, int]:
        while engine.engine.has_work or len(engine.versions.list()) > 1:
            await asyncio.sleep(0.002)
        return held_by(engine.engine)

    async def test(engine: AsyncEngine, url: str) -> tuple[dict[str, int], dict[str, int]]:
        done = asyncio.Event()
        async with clients(url) as http:
            http.headers.update(ADMINS)
            before = await swap(http, "ngram", "first", specs[1])
            await tokens(http, 6, max_tokens=24)
            first = await held_at_rest(engine)
            busy = asyncio.create_task(traffic(http, done))
            for number in range(200):
                before = await swap(http, before, f"v{number}", specs[number % 3])
                alive.append(weakref.ref(engine.drafters[before]))
                while len(engine.versions.list()) > 1:
                    await asyncio.sleep(0.002)
                assert (await http.get("/metrics")).status_code == 200
                if number % 20 == 0:
                    gc.collect()
                memory.append(megabytes())
            done.set()
            assert await busy > 200
            return first, await held_at_rest(engine)

    with served(max_num_seqs=8, spare_drafter_memory=2**27, kv_memory=2**22) as (engine, server, _):
        first, last = asyncio.run(test(engine, server.url))
        assert engine.stats().drafter_failures == 0
        eventually(lambda: sum(ref() is not None for ref in alive) == 1)
    assert max(memory[100:]) - max(memory[20:50]) < 30, f"{memory[::20]}"
    grown = {name: (first[name], last[name]) for name in first if last[name] > first[name]}
    assert grown.keys() <= {"_records"} and last["_records"] <= 4, f"{grown}"
