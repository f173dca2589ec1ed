"""API keys as their lines state them: `KEY`, `NAME KEY` or `NAME KEY tokens=own`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core import InvalidRequest

TOKENS = ("no", "own", "shared")  # consents to keeping the token ids of a key's requests
FORMS = f"`KEY`, `NAME KEY` or `NAME KEY tokens={'|'.join(TOKENS)}`"
_OPTION = re.compile(rf"tokens=({'|'.join(TOKENS)})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key with its name, which logs and traces show, and its consent.

    tokens   whether traces may hold the token ids of its requests: not (no), for drafters that
             serve this key alone (own), or for all drafters (shared)
    named    whether its line states the name; a key without one is called after its place, key-1
    """

    name: str
    key: str = field(repr=False)
    tokens: str = "no"
    named: bool = True

    @classmethod
    def read(cls, line: str, place: int) -> ApiKey:
        """Read a line. Raises ValueError, which does not show it."""
        words = line.split()
        option = _OPTION.fullmatch(words[-1]) if len(words) > 1 else None
        plain = 1 <= len(words) <= 2 and option is None
        if not (plain or (len(words) == 3 and option)) or not (
            line.isascii() and line.isprintable()
        ):
            raise ValueError("no key")
        if len(words) == 1:
            return cls(f"key-{place}", words[0], named=False)
        return cls(words[0], words[1], option[1] if option else "no")


def read_keys(lines: Sequence[str], field: str = "api_keys") -> list[ApiKey]:
    """Read the lines of keys. Raises InvalidRequest, which shows no key, but may show a name."""
    try:
        keys = [ApiKey.read(line, place) for place, line in enumerate(lines, 1)]
    except ValueError:
        expected = f"non-empty printable ASCII strings, each {FORMS}"
        raise InvalidRequest(field, "<hidden>", expected) from None
    names = [key.name for key in keys]
    if twice := next((name for name in names if names.count(name) > 1), None):
        expected = "each name of a key once (keys without one are key-1, key-2 and so on)"
        raise InvalidRequest(field, twice, expected)
    return keys
