"""Counts of what followed each context in a fixed set of texts, in arrays of numbers.

It answers as `ContextTrie` does, for texts that neither come nor go. The places that are counted
are sorted by their contexts, read backwards (a suffix array of the reversed texts), so that all
places with one context lie side by side. A few dozen bytes hold a token, and loading is reading.

Walking down a context is a binary search for each token. The nodes that a walk has passed are kept,
up to a bound, so that contexts that come often cost as little as in a trie.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.continuations import BOUNDARY, Continuation, draft_from

SORTED = 32  # tokens of a context by which places are sorted: no longer context can be looked up
MOST_NODES = 50_000
NODE_BYTES = 260  # in 64-bit CPython: the object, its numbers, and its slot in a dict
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class ContextNode:
    """A context's places, `order[low:high]`: what followed them (`best` most often, `count` of
    `total` times), and the contexts one token longer that were walked to; None where there is
    none."""

    __slots__ = ("best", "count", "high", "longer", "low", "total")

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.best, self.count, self.total = -1, -1, 0
        self.longer: dict[int, ContextNode | None] = {}

    @property
    def agrees(self) -> bool:
        """Return whether all places were followed by the same token."""
        return self.count == self.total


UNKNOWN = ContextNode(0, 0)  # stands for a context that nobody walked to


class ContextArray:
    """Contexts of the texts in `tokens`, each behind a BOUNDARY, of up to `max_context` tokens.

    order     the places in `tokens` that are counted as followers, as sorted_places() returns them
    weights   how often each of those places counts
    """

    def __init__(
        self, tokens: Int32s, order: Int32s, weights: Int32s, max_context: int | None = None
    ) -> None:
        self.max_context = min(max_context or SORTED, SORTED)
        followers = np.ascontiguousarray(tokens[order])
        changes = np.zeros(len(order), dtype=np.int32)
        changes[1:] = np.cumsum(followers[1:] != followers[:-1])
        weight = np.zeros(len(order) + 1, dtype=np.int64)
        np.cumsum(weights, out=weight[1:])
        self._arrays = tokens, order, followers, weight
        # reading a single number from a memoryview takes a third of the time
        self._tokens, self._order = tokens.data, order.data
        self._changes, self._weight = changes.data, weight.data
        self._most_nodes = min(MOST_NODES, len(order))
        self.most_bytes = sum(a.nbytes for a in (*self._arrays, changes))
        self.most_bytes += self._most_nodes * NODE_BYTES
        self._forget()

    def __len__(self) -> int:
        """Return the number of counted tokens."""
        return len(self._order)

    def draft(
        self, context: Sequence[int], length: int, floor: float
    ) -> tuple[list[int], list[float]]:
        """Return the most frequent continuation of `context`, and estimates: see draft_from()."""
        if self._nodes > self._most_nodes:
            self._forget()
        return draft_from(self, context, length, floor)

    def continuation(self, window: list[int], match: int, source: int) -> Continuation | None:
        node, depth = self._longest(window)
        if node is None:
            return None
        if not node.agrees:
            if node.best < 0:
                self._count(node)
            return Continuation(node.best, node.count, node.total, depth, -1)
        follows = source >= 0 and match + 1 >= depth and source + 1 < len(self._tokens)
        if follows and self._tokens[source + 1] == node.best:
            match, source = match + 1, source + 1
        else:
            match, source = self._agreeing(window, node, depth)
        return Continuation(node.best, node.count, node.total, match, source)

    def _forget(self) -> None:
        """Drop the nodes that walks have left."""
        self._root, self._nodes = ContextNode(0, len(self._order)), 1

    def _longest(self, window: list[int]) -> tuple[ContextNode | None, int]:
        """Return the node of the longest context that ends `window`, and its length. A context
        whose places agree is long enough."""
        node, depth, deepest = self._root, 0, min(len(window), self.max_context)
        while depth < deepest and (depth == 0 or not node.agrees):
            token = window[-1 - depth]
            longer = node.longer.get(token, UNKNOWN)
            if longer is UNKNOWN:
                longer = node.longer[token] = self._child(node, depth, token)
            if longer is None:
                break
            node, depth = longer, depth + 1
        return (node, depth) if depth else (None, 0)

    def _child(self, node: ContextNode, depth: int, token: int) -> ContextNode | None:
        self._nodes += 1
        low, high = self._narrowed(node.low, node.high, depth, token)
        if low == high:
            return None
        child = ContextNode(low, high)
        if self._changes[high - 1] == self._changes[low]:
            child.best = self._tokens[self._order[low]]
            child.count = child.total = self._weight[high] - self._weight[low]
        return child

    def _count(self, node: ContextNode) -> None:
        """Find what followed a node's places most often; of equals, what was seen last."""
        _, order, followers, weight = self._arrays
        places = slice(node.low, node.high)
        distinct, which = np.unique(followers[places], return_inverse=True)
        counts = np.bincount(which, weights=np.diff(weight[node.low : node.high + 1]))
        last = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(last, which, order[places])
        best = int(np.lexsort((last, counts))[-1])
        node.best, node.count = int(distinct[best]), int(counts[best])
        node.total = int(weight[node.high] - weight[node.low])

    def _narrowed(self, low: int, high: int, depth: int, token: int) -> tuple[int, int]:
        """Return those of the places from `low` to `high`, which have a context of `depth` tokens,
        that have `token` before it."""
        tokens, order, back = self._tokens, self._order, depth + 1

        def before(place: int) -> int:
            return tokens[place - back]

        low = bisect_left(order, token, low, high, key=before)
        return low, bisect_right(order, token, low, high, key=before)

    def _agreeing(self, window: list[int], node: ContextNode, depth: int) -> tuple[int, int]:
        """Return how many tokens before a node's best place agree with `window`, and that place.

        Up to max_context: what agrees for longer is as good as certain.
        """
        low, high, tokens = node.low, node.high, self._tokens
        enough = min(len(window), self.max_context)
        while depth < enough and high - low > 1:
            narrower = self._narrowed(low, high, depth, window[-1 - depth])
            if narrower[0] == narrower[1]:
                return depth, self._order[low]
            (low, high), depth = narrower, depth + 1
        place = self._order[low]
        while depth < enough and tokens[place - 1 - depth] == window[-1 - depth]:
            depth += 1
        return depth, place


def sorted_places(tokens: Int32s, counted: Int64s) -> Int32s:
    """Return the places `counted` in `tokens`, sorted by the SORTED tokens before each, the nearest
    first; places with equal contexts keep their order. Each text begins with a BOUNDARY.

    Ranks by 1, 2, 4, … tokens are made of each other (Manber and Myers). What lies across a
    boundary takes part in the order, and in nothing else: no context reaches there.
    """
    rank = np.zeros(len(tokens), dtype=np.int64)
    rank[1:] = tokens[:-1] - np.int64(BOUNDARY)
    reach = 1
    while reach < SORTED:
        before = np.zeros_like(rank)
        before[reach:] = rank[:-reach]
        pair: NDArray[Any] = rank * (int(rank.max(initial=0)) + 1) + before
        _, rank = np.unique(pair, return_inverse=True)
        reach *= 2
    order = np.argsort(rank[counted], kind="stable")
    return counted[order].astype(np.int32)
