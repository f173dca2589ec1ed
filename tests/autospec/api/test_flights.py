"""Slow work is shared, bounded and never lost: whoever serves does not wait for it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest

from paceline.autospec.api.flights import Flight
from paceline.autospec.store import StoreError


class Work:
    """Work that ends when it may, with a number or an error."""

    def __init__(self) -> None:
        self.may_end, self.calls = threading.Event(), 0
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        assert self.may_end.wait(10)
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
def work() -> Work:
    return Work()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_all_who_ask_meanwhile_share_one_piece_of_work(work: Work) -> None:
    async def go() -> list[int]:
        flight = Flight("test", work, fresh=60)
        asked = [asyncio.ensure_future(flight.result(10)) for _ in range(3)]
        await until(lambda: work.calls == 1)
        work.may_end.set()
        return [*await asyncio.gather(*asked), await flight.result(10)]

    assert asyncio.run(go()) == [1, 1, 1, 1] and work.calls == 1


def test_work_that_takes_too_long_goes_on_for_the_next(work: Work) -> None:
    async def go() -> int:
        flight = Flight("test", work, fresh=60)
        with pytest.raises(TimeoutError):
            await flight.result(0.01)
        work.may_end.set()
        return await flight.result(10)

    assert asyncio.run(go()) == 1


def test_an_error_that_nobody_waits_for_is_no_noise_and_is_not_kept(work: Work) -> None:
    lost: list[dict[str, object]] = []

    async def go() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: lost.append(told))
        flight = Flight("test", work, fresh=60)
        work.error = StoreError("locked")
        with pytest.raises(TimeoutError):
            await flight.result(0.01)
        work.may_end.set()
        await asyncio.sleep(0.1)
        gc.collect()
        work.error = None
        return await flight.result(10)

    assert asyncio.run(go()) == 2 and not lost


def test_what_was_begun_before_a_change_is_not_kept(work: Work) -> None:
    async def go() -> tuple[int, int]:
        flight = Flight("test", work, fresh=60)
        before = asyncio.ensure_future(flight.result(10))
        await until(lambda: work.calls == 1)
        flight.forget()
        work.may_end.set()
        return await before, await flight.result(10)

    assert asyncio.run(go()) == (1, 2)
