"""A chain of drafters: each request gets the first draft that is not empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core import DraftBatch, Request
from paceline.drafters.base import Drafter, ObservedRows, TargetInfo
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.text import TextDrafter


class ChainDrafter(TextDrafter):
    """Several drafters, best first: each request gets the first draft that is not empty.

    For drafters that need neither features nor KV, which the engine hands out to one at a time.
    A part that gives no confidence counts as 1/2 for each token. `start_up_rows` are shown in
    the start-up table.
    """

    def __init__(
        self, name: str, parts: Sequence[Drafter], start_up_rows: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(name, max(part.max_draft_len for part in parts))
        self.parts = tuple(parts)
        self.start_up_rows = list(start_up_rows)
        self.version = "+".join(f"{part.name}-{part.version}" for part in parts)

    def attach(self, target: TargetInfo) -> None:
        for part in self.parts:
            part.attach(target)

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        for part in self.parts:
            part.begin(requests, held)

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        for part in self.parts:
            part.observe(rows)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        tokens: list[list[int]] = [[] for _ in requests]
        confidence: list[list[float]] = [[] for _ in requests]
        parts = [""] * len(requests)
        from_others = [False] * len(requests)
        open_ = list(range(len(requests)))
        for part in self.parts:
            batch = part.propose([requests[i] for i in open_], [lengths[i] for i in open_])
            for row, index in enumerate(open_):
                tokens[index], parts[index] = batch.tokens[row], part.name
                from_others[index] = batch.is_from_others(row)
                usual = [0.5] * len(tokens[index])
                confidence[index] = usual if batch.confidence is None else batch.confidence[row]
            open_ = [index for index in open_ if not tokens[index]]
        return DraftBatch(
            tokens=tokens, confidence=confidence, parts=parts, from_others=from_others
        )

    def release(self, requests: Sequence[Request]) -> None:
        for part in self.parts:
            part.release(requests)


def look_up_drafter(
    name: str, settings: Mapping[str, Any], start_up_rows: Sequence[tuple[str, str]] = ()
) -> ChainDrafter:
    """Make the drafter that needs texts alone. SUFFIX_OPTIONS has read `settings`."""
    lengths = {k: v for k, v in settings.items() if k == "max_draft_len"}
    return ChainDrafter(name, [SuffixDrafter(**settings), NgramDrafter(**lengths)], start_up_rows)
