"""The memory of suffix decoding while it is measured: held answers, and nothing else."""

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
        """Keep nothing: what is measured leaves no trace."""

    def warm(self, scope: bytes, answers: Iterable[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Remember `answers`, pairs of the text before and the answer, for requests of a scope."""
        for context, answer in answers:
            super().store(scope, context, answer)

    def forget(self) -> None:
        super().__init__(self.max_bytes, self.max_context)


def hold(drafter: Drafter) -> list[HeldCache]:
    """Replace the memories of the suffix decoders in `drafter` by held ones, and return these; none
    where it has no such part."""
    memories = []
    for part in _suffix_parts(drafter):
        part.cache = memory = HeldCache(part.cache.max_bytes, part.max_context)
        memories.append(memory)
    return memories


def _suffix_parts(drafter: Drafter) -> list[SuffixDrafter]:
    if isinstance(drafter, SuffixDrafter):
        return [drafter]
    if isinstance(drafter, HybridDrafter):
        return _suffix_parts(drafter.lookup)
    if isinstance(drafter, ChainDrafter):
        return [inner for part in drafter.parts for inner in _suffix_parts(part)]
    return []
