"""An answerer that answers at once, in whatever order a test likes."""

from __future__ import annotations

import random
from collections.abc import Callable

from paceline.synth.answer import Ask, Speed, TargetAnswer
from paceline.synth.prompts import keyed

Say = Callable[[Ask], tuple[tuple[int, ...], str]]


def by_seed(ask: Ask) -> tuple[tuple[int, ...], str]:
    """An answer that depends on nothing but what is asked."""
    draw = random.Random(keyed(ask.prompt_ids, ask.params.seed))
    return tuple(draw.randrange(1, 90) for _ in range(draw.randrange(2, 12))), "length"


class FakeAnswerer:
    """Answers one of up to `batch` asks at a time, the one that `order` draws."""

    def __init__(self, say: Say = by_seed, batch: int = 8, order: int = 0) -> None:
        self.what, self.asked = "fake", []  # type: tuple[str, list[Ask]]
        self._say, self._batch = say, batch
        self._draw = random.Random(order)
        self._open: list[Ask] = []
        self.closed = False

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def capacity(self) -> int:
        return self._batch - self.in_flight

    def submit(self, ask: Ask) -> None:
        assert self.capacity > 0
        self.asked.append(ask)
        self._open.append(ask)

    def wait(self) -> list[TargetAnswer]:
        if not self._open:
            return []
        ask = self._open.pop(self._draw.randrange(len(self._open)))
        ids, reason = self._say(ask)
        return [TargetAnswer(ask.index, ids, reason)]

    def speed(self) -> Speed:
        return Speed(0, 0, 0.0, 0.0)

    def close(self) -> None:
        self.closed = True
        self._open.clear()
