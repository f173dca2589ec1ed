"""Read a Hugging Face config strictly; errors name the field that is missing or malformed."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ModelError

MOST = 10**8  # of a size: beyond all models, and products of sizes stay exact
MOST_LAYERS = 10**4


class ConfigFields:
    """The fields of a config. Where checkpoints differ in a field's name, give all its names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def get(self, *names: str) -> Any:
        """The first of these fields that is there and not null, else None."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        return None

    def integer(
        self, *names: str, default: int | None = None, low: int = 1, high: int = MOST
    ) -> int:
        value = self.get(*names)
        value = default if value is None else value
        expected = f"{low} or more"
        if isinstance(value, int) and not isinstance(value, bool):
            if low <= value <= high:
                return value
            expected = expected if value < low else f"at most {high}"
        name, shown = " or ".join(names), reprlib.repr(value)
        raise ModelError(f"config: {name} is {shown}; expected a whole number, {expected}")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelError(f"config: {name} is {value!r}; expected true or false")
        return value

    def names(self, name: str, allowed: tuple[str, ...], length: int) -> tuple[str, ...] | None:
        """A list with one word per layer, or None where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise ModelError(f"config: {name} is not a list of {length} layers")
        for kind in value:
            if kind not in allowed:
                expected = ", ".join(allowed)
                raise ModelError(f"config: {name} has {kind!r}; expected one of {expected}")
        return tuple(value[:length])

    def integers(self, name: str, length: int) -> tuple[int, ...]:
        """A list of whole numbers, one per layer (a longer one is cut: draft layers follow)."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) < length:
            raise ModelError(f"config: {name} is not a list of {length} layers")
        for number in value:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST:
                shown = reprlib.repr(number)
                raise ModelError(f"config: {name} has {shown}; expected whole numbers up to {MOST}")
        return tuple(value[:length])
