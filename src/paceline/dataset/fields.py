"""Reads a mapping key by key, strictly: what is unknown or of another type is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer, check_number


class _Required:
    pass


REQUIRED: Any = _Required()


class Fields:
    """One mapping of app.yaml. `where` is its place, "" for the whole file.

    Raises InvalidRequest, naming the field with its place, for a value that is no mapping, and for
    keys that nobody reads.
    """

    def __init__(self, value: Any, where: str, known: Sequence[str]) -> None:
        self.where = where
        if not isinstance(value, Mapping):
            raise InvalidRequest(where or "app", value, "a mapping with " + ", ".join(known))
        for key in value:
            if key not in known:
                expected = "one of the fields " + ", ".join(known)
                raise InvalidRequest(self.named(str(key)), value[key], expected)
        self._value = value

    def __contains__(self, key: str) -> bool:
        return self._value.get(key) is not None

    def named(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def refuse(self, key: str, expected: str) -> InvalidRequest:
        return InvalidRequest(self.named(key), self._value.get(key), expected)

    def any(self, key: str, default: Any = REQUIRED) -> Any:
        value = self._value.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise InvalidRequest(self.named(key), None, "a value: the field is required")
        return default

    def text(self, key: str, default: Any = REQUIRED, expected: str = "text, not empty") -> Any:
        """YAML reads `no` as false and `1.0` as a number: what is meant as text must be one."""
        value = self.any(key, default)
        if value is default:
            return value
        if not isinstance(value, str) or not value.strip():
            raise InvalidRequest(self.named(key), value, expected)
        return value

    def texts(self, key: str, default: Any = REQUIRED) -> Any:
        """A list of texts; one text is a list of one."""
        value = self.any(key, default)
        if value is default:
            return value
        value = [value] if isinstance(value, str) else value
        right = isinstance(value, list) and value
        if not right or not all(isinstance(part, str) and part.strip() for part in value):
            raise InvalidRequest(self.named(key), value, "a text or a list of texts, none empty")
        return tuple(value)

    def choice(self, key: str, choices: Sequence[str], default: Any = REQUIRED) -> str:
        value = self.any(key, default)
        if value not in choices:
            raise InvalidRequest(self.named(key), value, "one of " + ", ".join(choices))
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.any(key, default)
        if not isinstance(value, bool):
            raise InvalidRequest(self.named(key), value, "true or false")
        return value

    def integer(self, key: str, default: Any = REQUIRED, *, low: int = 1) -> Any:
        value = self.any(key, default)
        if value is not default:
            expected = f"a whole number of at least {low}"
            check_integer(self.named(key), value, low, 2**53, expected)
        return value

    def number(
        self, key: str, default: Any = REQUIRED, *, low: float = 0, high: float = 1e9
    ) -> Any:
        value = self.any(key, default)
        if value is default:
            return value
        expected = f"a number from {low:g} to {high:g}"
        check_number(self.named(key), value, low, high, expected)
        return float(value)

    def template(self, key: str) -> str:
        """A text with one place for the prompt."""
        text = self.text(key, "{prompt}")
        if text.count("{prompt}") != 1:
            expected = "a text with {prompt} in it once, where the prompt is put"
            raise InvalidRequest(self.named(key), text, expected)
        return str(text)
