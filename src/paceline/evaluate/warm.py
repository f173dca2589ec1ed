"""What suffix decoding remembers while it is measured: what it was told to, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.drafters.base import Drafter
from paceline.drafters.chain import ChainDrafter
from paceline.drafters.hybrid import HybridDrafter
from paceline.drafters.suffix import ResponseCache, SuffixDrafter


class HeldCache(ResponseCache):
    """The answers of a while of serving, held at that point.

    A serving drafter keeps every answer for the requests that follow. Here each prompt is answered
    several times: the second answer would be copied from the first.
    """

    def store(self, scope: bytes, context: Sequence[int], response: Sequence[int]) -> None:
        """Nothing: what is measured leaves no trace."""

    def warm(self, scope: bytes, answers: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Remembers `answers`, (what came before, answer), for the requests of that scope."""
        for context, answer in answers:
            super().store(scope, context, answer)

    def forget(self) -> None:
        super().__init__(self.max_bytes, self.max_context)


def hold(drafter: Drafter) -> list[HeldCache]:
    """Puts a held memory in place of what the suffix decoders in `drafter` remember; none where it
    has no such part."""
    found = _suffix_parts(drafter)
    for part in found:
        part.cache = HeldCache(part.cache.max_bytes, part.max_context)
    return [part.cache for part in found if isinstance(part.cache, HeldCache)]


def _suffix_parts(drafter: Drafter) -> list[SuffixDrafter]:
    if isinstance(drafter, SuffixDrafter):
        return [drafter]
    if isinstance(drafter, HybridDrafter):
        return _suffix_parts(drafter.lookup)
    if isinstance(drafter, ChainDrafter):
        return [found for part in drafter.parts for found in _suffix_parts(part)]
    return []
