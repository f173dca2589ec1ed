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

from paceline.core import DraftBatch, KVSpec, Request
from paceline.drafters.base import BuildContext, DrafterSpec, ObservedRows, TargetInfo, register
from paceline.drafters.context_trie import ContextTrie
from paceline.drafters.spec import draft_len, read_options, real, refuse_value, whole

MIB = 2**20


@dataclass(slots=True)
class _Response:
    """What has to be known of a cached response to take it out again."""

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
        """Adds a response; the last tokens of `context`, what came before it, lead into it."""
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
class _Own:
    """A running request's own tokens."""

    trie: ContextTrie
    indexed: int = 0

    def extend(self, tokens: Sequence[int], end: int) -> None:
        if end > self.indexed:
            self.trie.extend(tokens[self.indexed : end])
            self.indexed = end


class SuffixDrafter:
    """Drafts by counts from the request's own text and from past responses of its scope."""

    version = "1"
    feature_layers: tuple[int, ...] = ()
    kv: KVSpec | None = None
    lookback = 0
    parallel = True
    reach: int | None = None
    weight_bytes = 0

    def __init__(
        self,
        name: str = "suffix",
        max_draft_len: int = 15,
        max_context: int = 24,
        min_token_prob: float = 0.1,
        max_bytes: int = 64 * MIB,
    ) -> None:
        self.name, self.max_draft_len = name, max_draft_len
        self.max_context, self.min_token_prob = max_context, min_token_prob
        self.cache = ResponseCache(max_bytes, max_context)
        self._own: dict[tuple[str, int], _Own] = {}

    def attach(self, target: TargetInfo) -> None:
        """Fits every target: token ids are all it needs."""

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        for request in requests:
            if request.max_draft_len > 0:  # a request that never drafts costs nothing
                own = _Own(ContextTrie(self.max_context))
                own.trie.begin_text()
                self._own[request.id, request.choice] = own

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Indexes along with the prompt's chunks: no step pays for a long prompt at once."""
        for row in rows:
            own = self._own.get((row.request.id, row.request.choice))
            if own is not None:
                own.extend(row.request.tokens, row.start + row.count)

    def held_tokens(self, request: Request) -> int:
        return 0

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        drafts = [self._draft(*pair) for pair in zip(requests, lengths, strict=True)]
        return DraftBatch(
            tokens=[tokens for tokens, _, _ in drafts],
            confidence=[estimates for _, estimates, _ in drafts],
            from_others=[from_others for _, _, from_others in drafts],
        )

    def _draft(self, request: Request, length: int) -> tuple[list[int], list[float], bool]:
        """Returns the draft, its estimates, and whether it comes from past responses."""
        own = self._own.get((request.id, request.choice))
        length = min(length, self.max_draft_len)
        if own is None or length <= 0:
            return [], [], False
        own.extend(request.tokens, len(request.tokens))
        tokens, estimates = own.trie.draft(request.tokens, length, self.min_token_prob)
        scope = request.answers_scope
        responses = None if scope is None else self.cache.trie(scope)
        if responses is not None:
            others, their_estimates = responses.draft(request.tokens, length, self.min_token_prob)
            if expected_accepted(their_estimates) > expected_accepted(estimates):
                return others, their_estimates, True
        return tokens, estimates, False

    def release(self, requests: Sequence[Request]) -> None:
        """Drops their own text; the responses of those that ended are kept for their scope."""
        for request in requests:
            own = self._own.pop((request.id, request.choice), None)
            scope = request.answers_scope
            if own is not None and scope is not None and request.finish_reason is not None:
                self.cache.store(scope, request.prompt_ids, request.output_ids)


def expected_accepted(estimates: Sequence[float]) -> float:
    """Sum of the path's probabilities: the mean number of tokens that would be accepted."""
    return sum(accumulate(estimates, mul))


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
