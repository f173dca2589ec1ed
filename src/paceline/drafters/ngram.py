"""Prompt lookup: propose the tokens that followed when the text last ended like this.

The longest n-gram, from `max_ngram` down to `min_ngram`, that ends the request's tokens and stands
earlier in them is looked up, and what followed its most recent occurrence is proposed.
Saxena, "Prompt Lookup Decoding" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import DraftBatch, InvalidRequest, Request
from paceline.drafters.kinds import DRAFT_LENGTH, BuildContext, DrafterSpec, register, whole
from paceline.drafters.own_text import OwnTextDrafter

_TOKEN_BITS = 32


class NgramIndex:
    """The latest occurrence of each n-gram of a growing text, but for one that ends the text.

    One dict per n: n-gram -> index of the token after its latest occurrence. An n-gram is entered
    when the token after it arrives, so a lookup of the text's own end finds earlier occurrences
    only. Appending costs one dict entry per n; nothing is ever scanned again.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self.min_ngram, self.max_ngram = min_ngram, max_ngram
        self._after: list[dict[int, int]] = [{} for _ in range(max_ngram - min_ngram + 1)]
        self.indexed = 1  # n-grams that end before this index are in

    def extend(self, tokens: Sequence[int], end: int) -> None:
        """Enter the n-grams of tokens[:end] that are not in yet."""
        low, high, after = self.min_ngram, self.max_ngram, self._after
        for follower in range(self.indexed, end):
            key = 0
            for n in range(1, min(high, follower) + 1):
                key = key << _TOKEN_BITS | tokens[follower - n]
                if n >= low:
                    after[n - low][key] = follower
        self.indexed = max(self.indexed, end)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the index of the token that followed the longest n-gram that ends `tokens` and
        occurred before; None if none did."""
        key, latest = 0, None
        for n in range(1, min(self.max_ngram, len(tokens)) + 1):
            key = key << _TOKEN_BITS | tokens[-n]
            if n >= self.min_ngram:
                follower = self._after[n - self.min_ngram].get(key)
                if follower is None:  # a longer n-gram contains this one: it is new as well
                    break
                latest = follower
        return latest


class NgramDrafter(OwnTextDrafter[NgramIndex]):
    """Drafts from the request's own tokens; holds one NgramIndex per running request."""

    def __init__(
        self, name: str = "ngram", max_draft_len: int = 15, min_ngram: int = 2, max_ngram: int = 5
    ) -> None:
        if min_ngram > max_ngram:
            field = f"drafter {name}, min_ngram"
            raise InvalidRequest(field, min_ngram, f"at most max_ngram ({max_ngram})")
        super().__init__(name, max_draft_len)
        self.min_ngram, self.max_ngram = min_ngram, max_ngram

    def make_index(self) -> NgramIndex:
        return NgramIndex(self.min_ngram, self.max_ngram)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        return DraftBatch(tokens=list(map(self._draft, requests, lengths)))

    def _draft(self, request: Request, length: int) -> list[int]:
        length = min(length, self.max_draft_len)
        index = self.catch_up(request) if length > 0 else None
        if index is None:
            return []
        tokens = request.tokens
        start = index.find(tokens)
        if start is None:
            return []
        draft = tokens[start : start + length]
        period = len(tokens) - start
        while len(draft) < length:  # the match reaches the end: the text repeats with this period
            draft.append(draft[-period])
        return draft


@register("ngram", untrained=True)
def _build(spec: DrafterSpec, context: BuildContext) -> NgramDrafter:
    ngram = whole(1, 64)
    readers = DRAFT_LENGTH | {"min_ngram": ngram, "max_ngram": ngram}
    return NgramDrafter(spec.name, **spec.settings(readers))
