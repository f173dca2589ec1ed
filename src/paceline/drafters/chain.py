"""A chain of drafters: each request gets the first draft that is not empty."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import DraftBatch, Request
from paceline.drafters.base import Drafter, ObservedRows, Remembering, TargetInfo
from paceline.drafters.kinds import Settings
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.suffix import SuffixDrafter


class ChainDrafter(Drafter):
    """Several drafters that need neither features nor KV, best first.

    A part that gives no confidence counts as 1/2 for each token.
    """

    def __init__(
        self, name: str, parts: Sequence[Drafter], start_up_rows: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.name, self.parts, self.start_up_rows = name, tuple(parts), list(start_up_rows)
        self.max_draft_len = max(part.max_draft_len for part in parts)
        self.version = "+".join(f"{part.name}-{part.version}" for part in parts)
        self.weight_bytes = sum(part.weight_bytes for part in parts)
        self.memories = [m for p in parts if isinstance(p, Remembering) for m in p.memories]

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
        count = len(requests)
        tokens: list[list[int]] = [[] for _ in requests]
        confidence: list[list[float]] = [[] for _ in requests]
        parts, from_others, open_ = [""] * count, [False] * count, list(range(count))
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
    name: str, settings: Settings, start_up_rows: Sequence[tuple[str, str]] = ()
) -> ChainDrafter:
    """Make the drafter that needs texts alone. `settings` are SuffixDrafter's arguments."""
    lengths = {k: v for k, v in settings.items() if k == "max_draft_len"}
    suffix = SuffixDrafter(**settings)
    rows = [*start_up_rows, *suffix.start_up_rows]
    return ChainDrafter(name, [suffix, NgramDrafter(**lengths)], rows)
