"""Read a model's config field by field: an error names the field, its value and what is right.

A config holds more fields than we read, so it is no `core.documents.Document`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ModelError


class ConfigFields:
    """The fields of one JSON object. A field that is null counts as absent.

    Errors say which file the object is from (`where`), and put `prefix` before its fields' names.
    Where checkpoints differ in a field's name, give all its names: the first that is there counts.
    """

    def __init__(
        self, values: Mapping[str, object], where: str = "config.json", prefix: str = ""
    ) -> None:
        self.values, self.where, self.prefix = values, where, prefix

    def get(self, *names: str, default: object = None) -> Any:
        """Return the first of these fields that is there, unchecked, else `default`."""
        return next((self.values[name] for name in names if self.has(name)), default)

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Return whether the field is written as null, where that differs from leaving it out."""
        return name in self.values and self.values[name] is None

    def number(self, *names: str, default: float | None = None, zero: bool = False) -> float:
        """Return a positive number; with `zero`, 0 is right too."""
        value = self.get(*names, default=default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and (0 < value < math.inf or (zero and value == 0)):
            return float(value)
        raise self.error(names, value, "a number, 0 or more" if zero else "a positive number")

    def integer(
        self, *names: str, default: int | None = None, low: int = 1, high: int | None = None
    ) -> int:
        """Return a whole number from `low` to `high`."""
        value = self.get(*names, default=default)
        expected = f"a whole number, {low} or more"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if high is not None and value > high:
                expected = f"a whole number, at most {high}"
            elif value >= low and value == value // 1:
                return int(value)
        raise self.error(names, value, expected)

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self.get(*names, default=default)
        if not isinstance(value, bool):
            raise self.error(names, value, "true or false")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list of names; none where the field is absent."""
        value = self.get(name, default=[])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.error(name, value, "a list of names")
        return tuple(value)

    def section(self, name: str, prefix: str = "") -> ConfigFields:
        """Return the fields of a nested object; none where it is absent."""
        value = self.get(name, default={})
        if not isinstance(value, Mapping):
            raise self.error(name, value, "an object")
        return ConfigFields(value, self.where, prefix)

    def error(self, names: tuple[str, ...] | str, value: object, expected: str) -> ModelError:
        """Return the error of a field with a wrong value."""
        field = names if isinstance(names, str) else " or ".join(names)
        shown = reprlib.repr(value)
        return ModelError(f"{self.where}: {self.prefix}{field} is {shown}; expected {expected}")


def first_with(name: str, *sources: ConfigFields) -> ConfigFields:
    """Return the first of several objects that has the field, else the last."""
    return next((fields for fields in sources if fields.has(name)), sources[-1])
