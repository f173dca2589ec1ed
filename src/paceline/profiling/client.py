"""Clients of a server that is profiled, in a process of their own: their work is not the server's.

Run as `python -m paceline.profiling.client`. The process reads a ClientPlan as JSON from
stdin, asks the first body alone, prints a line, and waits for one; then it asks until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Iterator
from itertools import cycle
from typing import TypedDict

import httpx

Body = dict[str, object]  # of a request to /v1/completions


class ClientPlan(TypedDict):
    url: str
    bodies: list[Body]
    batch: int  # requests at once


async def ask(http: httpx.AsyncClient, body: Body) -> None:
    """Read a stream to its end, in a scope of its own: nothing remembered helps it."""
    body = {**body, "stream": True, "cache_salt": uuid.uuid4().hex}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            detail = (await response.aread()).decode("utf-8", "replace")
            raise RuntimeError(f"{response.status_code} from the server: {detail[:500]}")
        async for _ in response.aiter_raw():
            pass


async def ask_all(http: httpx.AsyncClient, bodies: Iterator[Body]) -> None:
    while True:
        await ask(http, next(bodies))


async def run(plan: ClientPlan) -> None:
    # trust_env off: a proxy set for the internet must not stand between us and the server
    async with httpx.AsyncClient(base_url=plan["url"], timeout=600, trust_env=False) as http:
        await ask(http, plan["bodies"][0])
        print("warm", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        bodies = cycle(plan["bodies"])
        await asyncio.gather(*(ask_all(http, bodies) for _ in range(plan["batch"])))


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.stdin.readline())))
