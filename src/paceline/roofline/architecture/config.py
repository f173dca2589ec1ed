"""Read a Hugging Face config with its lists of layers; errors name the field that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.config_fields import ConfigFields
from paceline.core.errors import ModelError

MOST = 10**8  # of a size: beyond all models, and products of sizes stay exact
MOST_LAYERS = 10**4


class LayeredConfig(ConfigFields):
    """The fields of a config, whose sizes are bounded and some of whose lists are by layer."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values, "config")

    def integer(
        self, *names: str, default: int | None = None, low: int = 1, high: int | None = MOST
    ) -> int:
        return super().integer(*names, default=default, low=low, high=high)

    def names(self, name: str, allowed: tuple[str, ...], length: int) -> tuple[str, ...] | None:
        """Return a list with one word per layer, or None where it is absent."""
        if not self.has(name):
            return None
        kinds = self._layers(name, length)
        for kind in kinds:
            if kind not in allowed:
                expected = ", ".join(allowed)
                raise ModelError(f"config: {name} has {kind!r}; expected one of {expected}")
        return tuple(kinds)

    def integers(self, name: str, length: int) -> tuple[int, ...]:
        """Return a list of whole numbers, one per layer."""
        numbers = self._layers(name, length)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST:
                raise ModelError(
                    f"config: {name} has {number!r:.40}; expected whole numbers up to {MOST}"
                )
        return tuple(numbers)

    def _layers(self, name: str, length: int) -> list[Any]:
        """Return the entries of `length` layers; a longer list is cut: draft layers follow."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) < length:
            raise ModelError(f"config: {name} is not a list of {length} layers")
        return value[:length]
