"""Suffix decoding: the most frequent continuation of the longest match, in this request or others.

Three indexes are asked: one of the request's own tokens, one of past responses that is shared by
the requests with the same `answers_scope`, and a corpus, if the drafter has one. The draft with the
largest expected number of accepted tokens is taken; one that is not from the request's own tokens
is marked `from_others`.
After Oliaro et al., "SuffixDecoding" (arXiv 2411.04975), with context tries in place of suffix
trees and an estimate that grows with the match in place of a length bound (`context_trie`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul

from paceline.core import DraftBatch, Request
from paceline.drafters.context_array import ContextArray
from paceline.drafters.context_trie import AnyTrie, make_trie
from paceline.drafters.corpus import Corpus, load_corpus
from paceline.drafters.kinds import (
    DRAFT_LENGTH,
    BuildContext,
    DrafterSpec,
    Reader,
    Settings,
    real,
    register,
    text,
    whole,
)
from paceline.drafters.own_text import OwnTextDrafter
from paceline.kernels.build import runs_here

MIB = 2**20


class ResponseCache:
    """Past responses by scope, oldest out first when the estimated size passes `max_bytes`.

    A response is found only under the scope it was stored with, the request's `answers_scope`.
    """

    def __init__(self, max_bytes: int, max_context: int) -> None:
        self.max_bytes, self.max_context = max_bytes, max_context
        self.closed = False
        self.clear()

    def clear(self) -> None:
        self.estimated_bytes = 0
        self._tries: dict[bytes, AnyTrie] = {}
        # of each response its scope, and its tokens that are context and that are counted
        self._responses: deque[tuple[bytes, int, int]] = deque()

    def close(self) -> None:
        self.clear()
        self.closed = True

    def __len__(self) -> int:
        return len(self._responses)

    def trie(self, scope: bytes) -> AnyTrie | None:
        return self._tries.get(scope)

    def store(self, scope: bytes, context: Sequence[int], response: Sequence[int]) -> None:
        """Add a response; the last tokens of `context`, the text before it, lead into it."""
        if not self.closed:
            self.warm(scope, context, response)

    def warm(self, scope: bytes, context: Sequence[int], response: Sequence[int]) -> None:
        """Add a response, closed or not."""
        if not response or self.max_bytes == 0:
            return
        context = context[-self.max_context :]
        trie = self._tries.get(scope)
        before = trie.estimated_bytes if trie is not None else 0
        if trie is None:
            trie = self._tries[scope] = make_trie(self.max_context)
        self._responses.append((scope, len(context), len(response)))
        trie.begin_text(context)
        trie.extend(response)
        self.estimated_bytes += trie.estimated_bytes - before
        while self.estimated_bytes > self.max_bytes:
            self._evict()

    def _evict(self) -> None:
        scope, context, counted = self._responses.popleft()
        trie = self._tries[scope]
        before = trie.estimated_bytes
        trie.forget(context, counted)
        after = trie.estimated_bytes
        if len(trie) == 0:
            del self._tries[scope]
            after = 0
        self.estimated_bytes += after - before


class _Text:
    """A running request's own tokens, of which `indexed` are in the trie."""

    __slots__ = ("indexed", "trie")

    def __init__(self, max_context: int) -> None:
        self.trie, self.indexed = make_trie(max_context), 0
        self.trie.begin_text()

    def extend(self, tokens: Sequence[int], end: int) -> None:
        if end > self.indexed:
            self.trie.extend(tokens[self.indexed : end])
            self.indexed = end


class SuffixDrafter(OwnTextDrafter[_Text]):
    """Drafts by counts from the request's own text, past responses of its scope, and a corpus."""

    def __init__(
        self,
        name: str = "suffix",
        max_draft_len: int = 15,
        max_context: int = 24,
        min_token_prob: float = 0.1,
        max_bytes: int = 64 * MIB,
        corpus: Corpus | None = None,
    ) -> None:
        super().__init__(name, max_draft_len)
        runs_here()  # built here, where no request waits for it
        self.corpus, self.start_up_rows = corpus, list[tuple[str, str]]()
        if corpus is not None:
            self.version = f"corpus-{corpus.manifest.name}"
            self.weight_bytes = corpus.most_bytes
            self.start_up_rows.append((f"corpus of {name}", corpus.row))
        self.max_context, self.min_token_prob = max_context, min_token_prob
        self.cache = ResponseCache(max_bytes, max_context)
        self.memories = [self.cache]

    def make_index(self) -> _Text:
        return _Text(self.max_context)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        drafts = list(map(self._draft, requests, lengths))
        return DraftBatch(
            tokens=[tokens for tokens, _, _ in drafts],
            confidence=[estimates for _, estimates, _ in drafts],
            from_others=[from_others for _, _, from_others in drafts],
        )

    def _draft(self, request: Request, length: int) -> tuple[list[int], list[float], bool]:
        """Return the draft, its estimates, and whether it comes from other requests' text."""
        length = min(length, self.max_draft_len)
        text = self.catch_up(request) if length > 0 else None
        if text is None:
            return [], [], False
        tokens, estimates = text.trie.draft(request.tokens, length, self.min_token_prob)
        best, is_others = expected_accepted(estimates), False
        for index in self._shared(request):
            found = index.draft(request.tokens, length, self.min_token_prob)
            if (expected := expected_accepted(found[1])) > best:
                (tokens, estimates), best, is_others = found, expected, True
        return tokens, estimates, is_others

    def _shared(self, request: Request) -> Iterator[AnyTrie | ContextArray]:
        """Yield the indexes of other requests' text that a request may draft from."""
        scope = request.answers_scope
        responses = None if scope is None else self.cache.trie(scope)
        if responses is not None:
            yield responses
        if self.corpus is not None and self.corpus.serves(request):
            yield self.corpus.index

    def release(self, requests: Sequence[Request]) -> None:
        """Drop the requests' own texts; keep the responses of those that ended for their scope."""
        ended = [r for r in requests if r.finish_reason is not None and self.state(r) is not None]
        super().release(requests)
        for request in ended:
            if request.answers_scope is not None:
                self.cache.store(request.answers_scope, request.prompt_ids, request.output_ids)


def expected_accepted(estimates: Sequence[float]) -> float:
    """Return the mean number of tokens that would be accepted, by a draft's estimates."""
    return float(sum(accumulate(estimates, mul)))


@register("suffix", untrained=True, remembers=True)
def _build(spec: DrafterSpec, context: BuildContext) -> SuffixDrafter:
    return SuffixDrafter(spec.name, **read_corpus(spec, spec.settings(SUFFIX_OPTIONS), context))


def read_corpus(spec: DrafterSpec, settings: Settings, context: BuildContext) -> Settings:
    """Return the settings with the corpus itself in place of its folder. Raises InvalidRequest
    for a corpus that may not be used, or not for this target."""
    if "corpus" not in settings:
        return settings
    field, folder = f"drafter {spec.name}, corpus", settings["corpus"]
    corpus = load_corpus(folder, context.target, field, settings.get("max_context"))
    return settings | {"corpus": corpus}


SUFFIX_OPTIONS: dict[str, Reader] = DRAFT_LENGTH | {
    "max_context": whole(1, 256),
    "min_token_prob": real(0.0, 1.0),
    "max_bytes": whole(0, 2**40),
    "corpus": text,
}
