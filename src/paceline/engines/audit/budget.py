"""The load that an audit may put on the servers: limits, what it has used, and the refusal of
more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from paceline.core import PacelineError
from paceline.core.documents import checked
from paceline.core.field_types import Between

Limit = Annotated[int, Between(1)]


class BudgetSpent(PacelineError):
    """A request would exceed the budget; it was not sent."""


@checked
class Budget:
    """The most that an audit may use, over both servers. Raises InvalidRequest naming the field.

    requests   HTTP requests that make tokens or score them
    tokens     of prompts and answers together
    at_once    answers at one time; each choice of a request is one
    seconds    after which no request is sent
    """

    requests: Limit = 2500
    tokens: Limit = 250_000
    at_once: Limit = 8
    seconds: Annotated[float, Between(0, open=True)] = 1800.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests and tokens, at most."""

    requests: int = 0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.requests + other.requests, self.tokens + other.tokens)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.requests * times, self.tokens * times)

    def fits(self, room: Cost) -> bool:
        return self.requests <= room.requests and self.tokens <= room.tokens


NOTHING = Cost()


class Meter:
    """Counts what an audit uses, and refuses what would exceed the budget. Threads may share it."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget = budget
        self._clock, self._begin = clock, clock()
        self._lock = threading.Lock()
        self._freed = threading.Condition()
        self._free = budget.at_once
        self._used = Cost()

    @property
    def used(self) -> Cost:
        return self._used

    @property
    def seconds(self) -> float:
        """Seconds since the audit began."""
        return self._clock() - self._begin

    @property
    def room(self) -> Cost:
        """What may still be used."""
        used, budget = self._used, self.budget
        return Cost(budget.requests - used.requests, budget.tokens - used.tokens)

    @contextmanager
    def request(self, tokens: int, places: int = 1) -> Iterator[Callable[[int], None]]:
        """Send one request of at most `tokens` tokens inside. Call what this gives with the tokens
        that it took. Raises BudgetSpent.

        A request for several choices takes as many `places` of those at once. The tokens are
        reserved first, so that requests at the same time cannot exceed the budget together. A
        request that fails keeps its reservation: the server may have made them.
        """
        places = min(places, self.budget.at_once)
        with self._freed:
            self._freed.wait_for(lambda: self._free >= places)
            self._free -= places
        try:
            self._reserve(tokens)
            yield lambda taken: self._give_back(tokens - taken)
        finally:
            with self._freed:
                self._free += places
                self._freed.notify_all()

    def _reserve(self, tokens: int) -> None:
        with self._lock:
            if self.seconds > self.budget.seconds:
                raise BudgetSpent(f"the {self.budget.seconds:g} seconds of --seconds are over")
            if not (Cost(1, tokens)).fits(self.room):
                left = f"{self.room.requests} requests and {self.room.tokens} tokens are left"
                raise BudgetSpent(f"the budget is spent: {left}, and a request needs {tokens}")
            self._used += Cost(1, tokens)

    def _give_back(self, tokens: int) -> None:
        with self._lock:
            self._used += Cost(0, -tokens)
