"""The base of drafters that need texts alone: no features, no KV, no weights."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import DraftBatch, KVSpec, Request
from paceline.drafters.base import ObservedRows, TargetInfo


class TextDrafter:
    """Implements all of `paceline.drafters.base.Drafter` but `propose`, for a drafter that keeps
    nothing. A drafter that keeps something for each request overrides `begin` and `release`."""

    version = "1"
    feature_layers: tuple[int, ...] = ()
    kv: KVSpec | None = None
    lookback = 0
    parallel = True
    reach: int | None = None
    weight_bytes = 0

    def __init__(self, name: str, max_draft_len: int) -> None:
        self.name, self.max_draft_len = name, max_draft_len

    def attach(self, target: TargetInfo) -> None:
        """Fit every target: token ids are all that is needed."""

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        """Keep nothing."""

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Need nothing: committed tokens are in the request when it drafts."""

    def held_tokens(self, request: Request) -> int:
        return 0

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        raise NotImplementedError

    def release(self, requests: Sequence[Request]) -> None:
        """Keep nothing."""
