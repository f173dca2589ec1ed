"""The server over the real engine and a tiny random model."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from paceline.core import FinishReason
from paceline.engine.async_engine import AsyncEngine
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.server.run import Server
from tests.engine.tiny import tiny_model

from .conftest import eventually, listening

TEXT: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "ignore_eos": True, "seed": 7}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PROMPT = [5, 6, 7, 8, 9, 10] * 8  # repeats itself, so that n-grams draft


def tiny_engine(**options: Any) -> AsyncEngine:
    options = {"drafter": ("ngram", "suffix"), **options}
    config = EngineConfig(model="tiny", dtype="bfloat16", threads=1, **options)
    loaded = tiny_model("bfloat16")
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.chat_template = TEMPLATE
    loaded = replace(loaded, tokenizer=tokenizer)
    return AsyncEngine(build_engine(config, loaded))


@pytest.fixture(scope="module")
def engine() -> AsyncEngine:
    return tiny_engine(max_num_seqs=16)


@pytest.fixture(scope="module")
def server(engine: AsyncEngine) -> Iterator[Server]:
    with listening(engine) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client:
        yield client


def complete(http: httpx.Client, **changes: Any) -> dict[str, Any]:
    body = {**TEXT, "prompt": PROMPT, "return_token_ids": True, "cache_salt": "own", **changes}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("temperature", [0, 1])
def test_speculation_changes_nothing_but_the_metrics(http: httpx.Client, temperature: int) -> None:
    options = {"temperature": temperature, "logprobs": 2, "n": 2}
    plain = complete(http, speculative="off", **options)
    for wish in ({"drafter": "ngram"}, {"drafter": "suffix", "max_draft_len": 3}, None):
        drafted = complete(http, speculative=wish, **options)
        assert drafted["choices"] == plain["choices"]
    wish = {"drafter": "ngram", "policy": "fixed"}
    counts = complete(http, temperature=0, speculative=wish)["metrics"]
    assert counts["speculative_decoding"]["num_draft_tokens"] > 0


def test_unseeded_requests_tell_a_seed_that_repeats_them(http: httpx.Client) -> None:
    first = complete(http, seed=None, temperature=1, n=3)
    again = complete(http, seed=first["metrics"]["seed"], temperature=1, n=3)
    assert again["choices"] == first["choices"]
    assert complete(http, seed=None, temperature=1, n=3)["choices"] != first["choices"]


def test_unseeded_prompts_tell_a_seed_each(http: httpx.Client) -> None:
    together = complete(http, prompt=[PROMPT, PROMPT], seed=None, temperature=1, n=2)
    for index, seed in enumerate(together["metrics"]["seed"]):
        alone = complete(http, seed=seed, temperature=1, n=2)["choices"]
        expected = [c["token_ids"] for c in together["choices"][2 * index : 2 * index + 2]]
        assert [choice["token_ids"] for choice in alone] == expected


def test_cached_tokens_stay_within_their_scope(http: httpx.Client) -> None:
    def cached(salt: str) -> int:
        usage = complete(http, prompt=list(range(4, 100)), cache_salt=salt)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("a") == 0
    assert cached("a") > 60
    assert cached("b") == 0


def test_hanging_up_frees_the_blocks(engine: AsyncEngine, server: Server) -> None:
    body = {**TEXT, "prompt": PROMPT, "max_tokens": 900, "stream": True, "n": 4}
    body["speculative"] = "off"  # hundreds of steps: time enough to hang up
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, trust_env=False) as response:
        next(response.iter_lines())
    eventually(lambda: not engine.engine.has_work)
    assert engine.stats().requests_finished[FinishReason.ABORT] == 4
    assert engine.stats().kv_usage < 0.5
    assert engine.alive  # its integrity check ran, idle again


def test_metrics_count_what_was_served(http: httpx.Client) -> None:
    def value(name: str) -> float:
        lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))

    tokens, drafts = value("generation_tokens_total"), value("spec_decode_num_drafts_total")
    counts = complete(http)["metrics"]["speculative_decoding"]
    assert value("generation_tokens_total") - tokens == 40
    assert value("spec_decode_num_drafts_total") - drafts == counts["num_spec_steps"]


@asynccontextmanager
async def clients(url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120, limits=limits) as http:
        yield http


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_survivors_of_a_storm_of_hang_ups_say_what_they_say_alone(count: int) -> None:
    rng = random.Random(count)
    engine = tiny_engine(kv_memory=80_000, max_num_seqs=8, max_waiting=count, max_model_len=160)
    bodies = [
        {
            **TEXT,
            "prompt": [rng.randrange(4, 24) for _ in range(rng.randrange(2, 60))],
            "max_tokens": rng.randrange(1, 90),
            "temperature": rng.choice([0, 1]),
            "speculative": rng.choice([None, "off", {"drafter": "suffix", "max_draft_len": 5}]),
            "return_token_ids": True,
            "stream": False,
        }
        for _ in range(count)
    ]
    patience = [rng.choice([None, None, 0, 2]) for _ in bodies]

    async def ask(http: httpx.AsyncClient, body: Any) -> Any:
        return (await http.post("/v1/completions", json=body)).json()["choices"]

    async def hang_up(http: httpx.AsyncClient, body: Any, events: int) -> None:
        """Reads so many events of a long answer, then closes the connection."""
        long = {**body, "max_tokens": 99, "speculative": "off", "stream": True}
        async with http.stream("POST", "/v1/completions", json=long) as response:
            async for line in response.aiter_lines():
                events -= line.startswith("data:")
                if events <= 0:
                    return

    async def test(url: str) -> None:
        async with clients(url) as http:
            together = await asyncio.gather(
                *(
                    ask(http, body) if events is None else hang_up(http, body, events)
                    for body, events in zip(bodies, patience, strict=True)
                )
            )
            assert sum(choices is not None for choices in together) > count // 3
            for body, choices in zip(bodies, together, strict=True):
                if choices is not None:
                    assert await ask(http, {**body, "speculative": "off"}) == choices

    with listening(engine) as server:
        asyncio.run(test(server.url))
        eventually(lambda: not engine.engine.has_work)
        assert engine.alive
    assert engine.stats().preemptions > 0
    assert engine.stats().requests_finished.get(FinishReason.ABORT, 0) > 0
    assert engine.engine.cache.free_blocks == engine.engine.cache.num_blocks
