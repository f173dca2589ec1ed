"""Clients of the load test: good ones, bad ones, and those that hang up, dawdle or stop reading."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from soak_answers import Answer, Problem, check_refusal, check_rounds, streamed, whole
from soak_hostile import Hostile
from soak_http import PATIENCE, Reply, Rest, fetch, fetch_slowly, http_client, send_part
from soak_traffic import PARTS, SPECULATION, Ask, Traffic

REMEMBERED = 64  # answers that may be asked for again


@dataclass(slots=True)
class Tally:
    """What all clients together have seen."""

    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)  # seconds, of well-behaved streams
    tpot: list[float] = field(default_factory=list)

    def warmed_up(self) -> None:
        """Latencies count from here on."""
        self.ttft.clear()
        self.tpot.clear()

    def problem(self, what: str, error: BaseException) -> None:
        self.outcomes["unexpected errors"] += 1
        self.problems.append(f"{what}: {type(error).__name__}: {error}")


class Crowd:
    """So many clients that ask one server, one thing after another, until they are told to stop."""

    def __init__(self, url: str, traffic: Traffic, tally: Tally, hostile: float = 0.0) -> None:
        """`hostile`: the share of what clients do that is meant to harm others."""
        self._url, self._traffic, self._tally = url, traffic, tally
        self._share, self._hostile = hostile, Hostile(url, traffic.model) if hostile else None
        self._http = http_client(url)
        self._told: list[tuple[Ask, Answer]] = []

    async def run(self, clients: int, seconds: float, seed: int) -> None:
        end = time.monotonic() + seconds

        async def client(index: int) -> None:
            rng = random.Random(f"{seed}.{index}")
            while time.monotonic() < end:
                await self._act(rng)

        async with asyncio.TaskGroup() as group:
            for index in range(clients):
                group.create_task(client(index))

    async def close(self) -> None:
        await self._http.aclose()

    async def answered(self, ask: Ask, rest: Rest | None = None) -> Answer:
        """Asks until the queue has room, reads the answer to its end and judges it. A slow client
        rests after each read. Raises Problem, or what the transport raises."""
        content = json.dumps(ask.body).encode()
        while True:
            if rest is None:
                reply = await fetch(self._http, ask.path, content)
            else:
                reply = await fetch_slowly(self._url, ask, rest)
            if not await self._turned_away(reply):
                break
        if reply.status != 200:
            raise Problem(f"{reply.status} {reply.body[:300]!r} for {short(ask.body)}")
        return streamed(ask, reply) if ask.body.get("stream") else whole(ask, reply)

    # -- inside -----------------------------------------------------------------------------------

    async def _act(self, rng: random.Random) -> None:
        (act,) = rng.choices(list(ACTS), list(ACTS.values()))
        if self._hostile is not None and rng.random() < self._share:
            act = Crowd._harm
        try:
            await act(self, rng)
        except Exception as error:  # whatever it is, it goes into the report
            self._tally.problem(act.__name__.strip("_"), error)
            await asyncio.sleep(0.1)  # a server that is gone would be asked in a busy loop

    async def _turned_away(self, reply: Reply) -> bool:
        """Whether the queue was full; then it is time to ask again."""
        if reply.status != 429:
            return False
        self._done("429, asked again")
        if json.loads(reply.body)["error"]["code"] != "queue_full" or not reply.retry_after:
            raise Problem(f"429 for another reason, or none to come back: {reply.body!r}")
        await asyncio.sleep(int(reply.retry_after) * random.uniform(1.0, 1.5))
        return True

    def _done(self, outcome: str) -> None:
        self._tally.outcomes[outcome] += 1

    async def _good(self, rng: random.Random) -> None:
        ask = self._traffic.ask(rng)
        answer = await self.answered(ask)
        self._done("streamed" if ask.body.get("stream") else "whole")
        if answer.ttft is not None:
            self._tally.ttft.append(answer.ttft)
        if answer.tpot is not None:
            self._tally.tpot.append(answer.tpot)
        if ask.body.get("explain"):
            rounds = await self._http.get(f"/v1/requests/{answer.id}/rounds")
            check_rounds(answer, rounds.raise_for_status().json())
            self._done("rounds fetched")
        if ask.lossless and not isinstance(answer.metrics["seed"], list):
            seeded = {**ask.body, "seed": answer.metrics["seed"]}
            self._told.append((replace(ask, body=seeded), answer))
            if len(self._told) > REMEMBERED:
                self._told.pop(rng.randrange(REMEMBERED))

    async def _again(self, rng: random.Random) -> None:
        """An answer that somebody has had must come again, with other drafts or none."""
        if not self._told:
            return await self._good(rng)
        ask, before = rng.choice(self._told)
        body = self._traffic.told(rng, ask.body, rng.choice([*SPECULATION, "off", "off"]))
        answer = await self.answered(replace(ask, body=body))
        if not answer.same(before):
            raise Problem(f"{short(body)} gave {answer.texts}, before {before.texts}")
        self._done("repeated, the same")

    async def _bad(self, rng: random.Random) -> None:
        bad = rng.choice(self._traffic.bad)
        while True:
            reply = await fetch(self._http, bad.path, bad.content, method=bad.method)
            if not await self._turned_away(reply):
                break
        check_refusal(bad, reply)
        self._done("refused, as it should be")

    async def _hang_up(self, rng: random.Random) -> None:
        """At any time: before the first byte, or in between."""
        await self._leave(self._traffic.ask(rng), rng.uniform(0, 2))

    async def _hang_up_midway(self, rng: random.Random) -> None:
        ask = self._traffic.endless(rng, 200)
        await self._leave(ask, PATIENCE, reads=rng.randrange(1, 30))

    async def _leave(self, ask: Ask, seconds: float, reads: float = float("inf")) -> None:
        content = json.dumps(ask.body).encode()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                reply = await fetch(self._http, ask.path, content, reads=reads)
                if await self._turned_away(reply):
                    return
                if reply.status != 200:
                    raise Problem(f"{reply.status} {reply.body[:300]!r} for {short(ask.body)}")
        self._done("hung up")

    async def _read_slowly(self, rng: random.Random) -> None:
        await self.answered(self._traffic.bulky(rng), lambda: asyncio.sleep(rng.uniform(0, 0.1)))
        self._done("read slowly, to the end")

    async def _stop_reading(self, rng: random.Random) -> None:
        ask = self._traffic.bulky(rng)
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(5, 15)):
                reply = await fetch_slowly(self._url, ask, lambda: asyncio.sleep(PATIENCE))
                if await self._turned_away(reply):
                    return
        self._done("stopped reading, then hung up")

    async def _harm(self, rng: random.Random) -> None:
        assert self._hostile is not None
        self._done(f"hostile, {await self._hostile.act(rng)}")

    async def _half_a_request(self, rng: random.Random) -> None:
        await send_part(self._url, rng.choice(PARTS), rng.uniform(0, 1))
        self._done("half a request")


Act = Callable[[Crowd, random.Random], Awaitable[None]]
ACTS: dict[Act, float] = {  # what clients do, and how often
    Crowd._good: 58,
    Crowd._again: 12,
    Crowd._bad: 12,
    Crowd._hang_up: 5,
    Crowd._hang_up_midway: 5,
    Crowd._read_slowly: 3,
    Crowd._stop_reading: 2,
    Crowd._half_a_request: 3,
}


def short(body: dict[str, Any]) -> str:
    """A request as an error shows it: all but the long prompt."""
    text = json.dumps({k: v for k, v in body.items() if k not in ("prompt", "messages")})
    return f"{text} {str(body.get('prompt') or body.get('messages'))[:60]!r}"
