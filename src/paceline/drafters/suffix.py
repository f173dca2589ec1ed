"""Suffix decoding: the most frequent continuation of the longest match, in this request or others.

Two indexes are asked: one of the request's own tokens, one of past responses that is shared by the
requests with the same `answers_scope`. The draft with the larger expected number of accepted tokens
is taken; a draft from past responses is marked `from_others`.
After Oliaro et al., "SuffixDecoding" (arXiv 2411.04975), with context tries in place of suffix
trees and an estimate that grows with the match in place of a length bound (`ContextTrie.draft`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from paceline.core import DraftBatch, Request
from paceline.drafters.base import BuildContext, DrafterSpec, ObservedRows, register
from paceline.drafters.context_trie import ContextTrie
from paceline.drafters.spec import draft_len, read_options, real, refuse_value, whole
from paceline.drafters.text import TextDrafter

MIB = 2**20


@dataclass(slots=True)
class _Response:
    """The numbers of a cached response that its removal needs."""

    scope: bytes
    context: int
    counted: int


class ResponseCache:
    """Past responses by scope, oldest out first when the estimated size passes `max_bytes`.

    A response is found only under the scope it was stored with, the request's `answers_scope`.
    """

    def __init__(self, max_bytes: int, max_context: int) -> None:
        self.max_bytes, self.max_context = max_bytes, max_context
        self._tries: dict[bytes, ContextTrie] = {}
        self._responses: deque[_Response] = deque()
        self._bytes = 0

    @property
    def estimated_bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._responses)

    def trie(self, scope: bytes) -> ContextTrie | None:
        return self._tries.get(scope)

    def store(self, scope: bytes, context: Sequence[int], response: Sequence[int]) -> None:
        """Add a response; the last tokens of `context`, the text before it, lead into it."""
        if not response or self.max_bytes == 0:
            return
        context = context[-self.max_context :]
        trie = self._tries.get(scope)
        before = trie.estimated_bytes if trie is not None else 0
        if trie is None:
            trie = self._tries[scope] = ContextTrie(self.max_context)
        trie.begin_text(context)
        trie.extend(response)
        self._bytes += trie.estimated_bytes - before
        self._responses.append(_Response(scope, len(context), len(response)))
        while self._bytes > self.max_bytes:
            self._evict()

    def _evict(self) -> None:
        oldest = self._responses.popleft()
        trie = self._tries[oldest.scope]
        before = trie.estimated_bytes
        trie.forget(oldest.context, oldest.counted)
        after = trie.estimated_bytes
        if len(trie) == 0:
            del self._tries[oldest.scope]
            after = 0
        self._bytes += after - before


@dataclass(slots=True)
class _Text:
    """A running request's own tokens."""

    trie: ContextTrie
    indexed: int = 0

    def extend(self, tokens: Sequence[int], end: int) -> None:
        if end > self.indexed:
            self.trie.extend(tokens[self.indexed : end])
            self.indexed = end


class SuffixDrafter(TextDrafter):
    """Drafts by counts from the request's own text and from past responses of its scope."""

    def __init__(
        self,
        name: str = "suffix",
        max_draft_len: int = 15,
        max_context: int = 24,
        min_token_prob: float = 0.1,
        max_bytes: int = 64 * MIB,
    ) -> None:
        super().__init__(name, max_draft_len)
        self.max_context, self.min_token_prob = max_context, min_token_prob
        self.cache = ResponseCache(max_bytes, max_context)
        self._texts: dict[tuple[str, int], _Text] = {}

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        for request in requests:
            if request.max_draft_len > 0:  # a request that never drafts costs nothing
                text = _Text(ContextTrie(self.max_context))
                text.trie.begin_text()
                self._texts[request.id, request.choice] = text

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Index along with the prompt's chunks: no step pays for a long prompt at once."""
        for row in rows:
            text = self._texts.get((row.request.id, row.request.choice))
            if text is not None:
                text.extend(row.request.tokens, row.start + row.count)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        drafts = [self._draft(*pair) for pair in zip(requests, lengths, strict=True)]
        return DraftBatch(
            tokens=[tokens for tokens, _, _ in drafts],
            confidence=[estimates for _, estimates, _ in drafts],
            from_others=[from_others for _, _, from_others in drafts],
        )

    def _draft(self, request: Request, length: int) -> tuple[list[int], list[float], bool]:
        """Return the draft, its estimates, and whether it comes from past responses."""
        text = self._texts.get((request.id, request.choice))
        length = min(length, self.max_draft_len)
        if text is None or length <= 0:
            return [], [], False
        text.extend(request.tokens, len(request.tokens))
        tokens, estimates = text.trie.draft(request.tokens, length, self.min_token_prob)
        scope = request.answers_scope
        responses = None if scope is None else self.cache.trie(scope)
        if responses is not None:
            shared, shared_estimates = responses.draft(request.tokens, length, self.min_token_prob)
            if expected_accepted(shared_estimates) > expected_accepted(estimates):
                return shared, shared_estimates, True
        return tokens, estimates, False

    def release(self, requests: Sequence[Request]) -> None:
        """Drop the requests' own texts; keep the responses of those that ended for their scope."""
        for request in requests:
            text = self._texts.pop((request.id, request.choice), None)
            scope = request.answers_scope
            if text is not None and scope is not None and request.finish_reason is not None:
                self.cache.store(scope, request.prompt_ids, request.output_ids)


def expected_accepted(estimates: Sequence[float]) -> float:
    """Return the mean number of tokens that would be accepted, by a draft's estimates."""
    return float(sum(accumulate(estimates, mul)))


@register("suffix")
def _build(spec: DrafterSpec, context: BuildContext) -> SuffixDrafter:
    refuse_value(spec)
    return SuffixDrafter(spec.name, **read_options(spec, SUFFIX_OPTIONS))


SUFFIX_OPTIONS = {
    "max_draft_len": draft_len(),
    "max_context": whole(1, 256),
    "min_token_prob": real(0.0, 1.0),
    "max_bytes": whole(0, 2**40),
}
