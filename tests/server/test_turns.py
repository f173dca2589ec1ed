"""Who is next on a thread that clients share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.server.turns import Turns


@contextmanager
def busy(turns: Turns) -> Iterator[None]:
    """Keeps the thread busy within the block, so that jobs wait for it."""
    began, free = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert free.wait(20)

    holding = turns.submit(hold, client="holder", cost=1)
    assert began.wait(20)
    try:
        yield
    finally:
        free.set()
        holding.result(20)


def order(jobs: list[tuple[str, str, float]]) -> list[str]:
    """The names of jobs (name, client, cost) that wait together, as they are run."""
    turns, ran = Turns("test"), []  # type: tuple[Turns, list[str]]
    with busy(turns):
        waiting = [
            turns.submit(lambda name=name: ran.append(name), client=client, cost=cost)
            for name, client, cost in jobs
        ]
    for future in waiting:
        future.result(20)
    return ran


def test_one_client_is_served_in_order() -> None:
    assert order([("a", "x", 9), ("b", "x", 1), ("c", "x", 5)]) == ["a", "b", "c"]


def test_a_flood_of_one_client_delays_another_by_one_job() -> None:
    flood = [(f"flood {index}", "x", 100.0) for index in range(20)]
    assert order([*flood, ("other", "y", 100)]).index("other") == 1


def test_clients_share_the_time_by_cost() -> None:
    ran = order([*[("long", "x", 40.0)] * 5, *[("short", "y", 10.0)] * 20])
    first = ran[:10]
    assert 1 <= first.count("long") <= 3  # a fifth of the jobs takes half of the time


def test_what_a_job_raises_reaches_its_client_alone() -> None:
    turns = Turns("test")

    async def test() -> None:
        with pytest.raises(ZeroDivisionError):
            await turns.run(lambda: 1 / 0, client="x", cost=1)
        assert await turns.run(lambda: 5, client="x", cost=1) == 5

    asyncio.run(test())


def test_a_job_that_nobody_waits_for_any_more_does_not_run() -> None:
    turns, ran = Turns("test"), []  # type: tuple[Turns, list[str]]
    with busy(turns):
        gone = turns.submit(lambda: ran.append("gone"), client="x", cost=1)
        assert gone.cancel()
        stays = turns.submit(lambda: ran.append("stays"), client="x", cost=1)
    stays.result(20)
    assert ran == ["stays"]
