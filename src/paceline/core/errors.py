"""What Paceline raises on purpose, and the checks that raise it."""

from __future__ import annotations

import math
from typing import Any


class PacelineError(Exception):
    """Base of every error that Paceline raises on purpose."""


class InvalidRequest(PacelineError, ValueError):
    """A field holds a value that cannot be honoured. Nothing that is running is affected.

    `field` is the name as the user wrote it; the message gives the value and what would be right.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        shown = repr(value)
        shown = shown if len(shown) <= 120 else shown[:117] + "..."
        super().__init__(f"{field}: got {shown}; expected {expected}")


class ModelError(PacelineError, ValueError):
    """A model folder, file or config that cannot be served; the message names what and why."""


class QueueFull(PacelineError):
    """The engine's waiting queue is at its bound. `retry_after` is a hint in seconds."""

    def __init__(self, waiting: int, retry_after: float) -> None:
        self.waiting, self.retry_after = waiting, retry_after
        super().__init__(f"{waiting} requests are waiting already; retry in {retry_after:.0f} s")


def check_number(field: str, value: Any, low: float, high: float, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequest(field, value, expected)
    if not low <= value <= high:
        raise InvalidRequest(field, value, expected)


def check_integer(field: str, value: Any, low: int, high: int, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(field, value, expected)
