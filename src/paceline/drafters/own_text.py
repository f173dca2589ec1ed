"""Drafters that index the text of each running request, a bounded number of tokens at a time.

An index grows along with the rows of a prompt. Rows that the prefix cache has are never shown, and
short ones of steps without drafts neither: such text is caught up with when the request is drafted
for, which takes several drafts where it is long. Until then drafts come from what is indexed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from paceline.core import Request
from paceline.drafters.base import ObservedRows, StatefulDrafter

# 4 µs a token with n-gram and with tries in Python (0.25 in native ones), measured: 4 ms for a
# request, and 16 for all of its choices.
# The choices of other requests may not count: a draft must not depend on them.
MOST_OF_A_CHOICE = 1024
MOST_OF_A_REQUEST = 4096


class OwnTextIndex(Protocol):
    """An index of the first `indexed` tokens of a text."""

    indexed: int

    def extend(self, tokens: Sequence[int], end: int) -> None:
        """Index tokens[:end], as far as they are not indexed."""


Index = TypeVar("Index", bound=OwnTextIndex)


class OwnTextDrafter(StatefulDrafter[Index]):
    """Holds one index per running request that may be drafted for."""

    def make_index(self) -> Index:
        raise NotImplementedError

    def start(self, request: Request, held: int) -> Index | None:
        # a request that never drafts costs nothing
        return self.make_index() if request.max_draft_len > 0 else None

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Index as many tokens as there are rows: no step pays for a long prompt at once."""
        for row in rows:
            index = self.state(row.request)
            if index is not None:
                end = min(row.start, index.indexed) + row.count
                index.extend(row.request.tokens, end)

    def catch_up(self, request: Request) -> Index | None:
        """Return the index of a request, which now holds its text or at least more of it."""
        index = self.state(request)
        if index is not None:
            most = min(MOST_OF_A_CHOICE, MOST_OF_A_REQUEST // request.params.n)
            index.extend(request.tokens, min(len(request.tokens), index.indexed + most))
        return index
