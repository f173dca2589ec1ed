"""A suffix drafter that remembers what it was told to, and nothing of what it is measured on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.core import Request
from paceline.drafters.suffix import ResponseCache, SuffixDrafter


class WarmedSuffix(SuffixDrafter):
    """Suffix decoding as it stands after a while of serving, held at that point.

    A serving one keeps every answer for the requests that follow. Here each prompt is answered
    several times: the second answer would be copied from the first.
    """

    def forget(self) -> None:
        self.cache = ResponseCache(self.cache.max_bytes, self.max_context)

    def warm(self, scope: bytes, answers: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Remembers `answers`, (what came before, answer), for the requests of that scope."""
        for context, answer in answers:
            self.cache.store(scope, context, answer)

    def release(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._own.pop((request.id, request.choice), None)
