"""Counts of what followed each context in a text: the index behind suffix decoding.

A context is the last 1 to `max_context` tokens before a position. The trie is keyed by contexts
read backwards, nearest token first, so that walking down from the root lengthens the context.

While all occurrences of a context were followed by the same token, no longer context can say
anything else, so a branch grows only where continuations differ. Ordinary text costs a few dict
look-ups and some hundred bytes per token; counts are exact; and the same walk takes the oldest text
out again, which a suffix automaton cannot do, and a path-compressed tree only by rewriting edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from paceline.drafters.continuations import BOUNDARY, Continuation, draft_from
from paceline.kernels.build import runs_here
from paceline.kernels.tries import NativeTrie

COMPARED = 8  # most recent occurrences on which the length of a match is measured

# Estimated bytes in 64-bit CPython, held against tracemalloc by a test. A leaf is a dict slot
# (tables are half full on average) and its position.
EMPTY_BYTES = 600
TOKEN_BYTES = 40
LEAF_BYTES = 80
LIST_BYTES = 96  # for the first list over a context; each position more is one pointer
POINTER_BYTES = 10
FORK_BYTES = 480  # the object and its two dicts


class Fork:
    """A context whose occurrences were not all followed by the same token: how often each followed
    (`best` most often, of equals the one seen last), and the contexts one token longer."""

    __slots__ = ("best", "counts", "longer", "total")

    def __init__(self, token: int, count: int) -> None:
        self.best, self.total = token, count
        self.counts: dict[int, int] = {token: count}
        self.longer: Branches = {}

    def add(self, token: int) -> None:
        count = self.counts[token] = self.counts.get(token, 0) + 1
        self.total += 1
        if count >= self.counts[self.best]:
            self.best = token

    def discount(self, token: int) -> None:
        self.total -= 1
        count = self.counts[token] - 1
        if count:
            self.counts[token] = count
        else:
            del self.counts[token]
        if token == self.best and self.counts:
            # of equals the smallest, but the best so far while no other is better
            most = max(self.counts, key=lambda other: (self.counts[other], -other))
            if self.counts[most] > count:
                self.best = most


# The occurrences of a context: one position, several that agree on the next token, or a Fork. A
# position is the index of the token that followed.
Entry: TypeAlias = "int | list[int] | Fork"
Branches: TypeAlias = dict[int, Entry]


class ContextTrie:
    """Contexts of one or more texts, one after the other. `begin_text` starts a text. NativeTrie
    does the same in native code."""

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.entry_bytes = 0
        self._root: Branches = {}
        self._text: list[int] = []
        self._base = 0  # position of _text[0]: the text before it was forgotten

    @property
    def estimated_bytes(self) -> int:
        return EMPTY_BYTES + self.entry_bytes + TOKEN_BYTES * len(self._text)

    def __len__(self) -> int:
        """Return the number of tokens held, with boundaries."""
        return len(self._text)

    def begin_text(self, context: Sequence[int] = ()) -> None:
        """Start a text, with tokens that serve as context only: they are never proposed."""
        self._text.append(BOUNDARY)
        self._text.extend(context)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text begun last, each counted as what followed its contexts."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        text, branches = self._text, self._root
        end = len(text)
        position = self._base + end
        text.append(token)
        for index in range(end - 1, max(-1, end - 1 - self.max_context), -1):
            nearest = text[index]
            if nearest == BOUNDARY:
                return
            entry = branches.get(nearest)
            if not isinstance(entry, Fork):
                positions = _positions(entry)
                if not positions or text[positions[0] - self._base] == token:
                    self._add(branches, nearest, positions, position)
                    return
                entry = branches[nearest] = self._split(positions, end - index)
            entry.add(token)
            branches = entry.longer

    def _add(self, branches: Branches, nearest: int, positions: list[int], position: int) -> None:
        """Add an occurrence that agrees with those before it."""
        if not positions:
            branches[nearest] = position
            self.entry_bytes += LEAF_BYTES
            return
        if len(positions) == 1:
            branches[nearest] = positions
            self.entry_bytes += LIST_BYTES
        self.entry_bytes += POINTER_BYTES
        positions.append(position)

    def _split(self, positions: list[int], depth: int) -> Fork:
        """Return the fork for a context of `depth` tokens; longer contexts get its occurrences."""
        fork = Fork(self._text[positions[0] - self._base], len(positions))
        self.entry_bytes += FORK_BYTES
        if len(positions) > 1:
            self.entry_bytes -= LIST_BYTES + POINTER_BYTES * (len(positions) - 1)
        for position in positions if depth < self.max_context else ():
            nearest = self._text[position - self._base - depth - 1]
            if nearest != BOUNDARY:
                agreeing = _positions(fork.longer.get(nearest))
                self._add(fork.longer, nearest, agreeing, position)
        return fork

    def forget(self, context: int, counted: int) -> None:
        """Take out the oldest text, which began with `context` tokens and grew by `counted`."""
        first = self._base + 1 + context
        for position in range(first, first + counted):
            self._remove(position)
        del self._text[: 1 + context + counted]
        self._base = first + counted

    def _remove(self, position: int) -> None:
        text, branches = self._text, self._root
        end = position - self._base
        token = text[end]
        for index in range(end - 1, max(-1, end - 1 - self.max_context), -1):
            nearest = text[index]
            if nearest == BOUNDARY:
                return
            entry = branches[nearest]
            if isinstance(entry, Fork):
                entry.discount(token)
                if entry.total == 0:
                    del branches[nearest]
                    self.entry_bytes -= FORK_BYTES + LEAF_BYTES
                branches = entry.longer
                continue
            if isinstance(entry, int):
                del branches[nearest]
                self.entry_bytes -= LEAF_BYTES
                return
            self.entry_bytes -= POINTER_BYTES
            entry.remove(position)  # the oldest comes first in the list
            if len(entry) == 1:
                branches[nearest] = entry[0]
                self.entry_bytes -= LIST_BYTES
            return

    def draft(
        self, context: Sequence[int], length: int, floor: float
    ) -> tuple[list[int], list[float]]:
        """Return the most frequent continuation of `context`, and estimates: see draft_from()."""
        return draft_from(self, context, length, floor)

    def continuation(self, window: list[int], match: int, source: int) -> Continuation | None:
        entry, depth = self._longest(window)
        if entry is None:
            return None
        if isinstance(entry, Fork):
            return Continuation(entry.best, entry.counts[entry.best], entry.total, depth, -1)
        positions = _positions(entry)
        follows = source >= 0 and positions[-1] == source + 1
        match = match + 1 if follows else self._agreeing(window, positions)
        source, count = positions[-1], len(positions)
        return Continuation(self._text[source - self._base], count, count, match, source)

    def _longest(self, window: list[int]) -> tuple[Entry | None, int]:
        """Return the entry of the longest context that ends `window`, and how deep it lies."""
        branches, depth = self._root, 0
        deepest: Entry | None = None
        for index in range(len(window) - 1, max(-1, len(window) - 1 - self.max_context), -1):
            entry = branches.get(window[index])
            if entry is None:
                break
            deepest, depth = entry, depth + 1
            if not isinstance(entry, Fork):
                break
            branches = entry.longer
        return deepest, depth

    def _agreeing(self, window: list[int], positions: list[int]) -> int:
        """Return how many tokens before the best of the latest `positions` agree with `window`.

        Up to max_context: what agrees for longer is as good as certain.
        """
        text, longest = self._text, 0
        enough = min(len(window), self.max_context)
        for position in reversed(positions[-COMPARED:]):
            index, length = position - self._base - 1, 0
            while length < enough and text[index - length] == window[-1 - length]:
                length += 1
            longest = max(longest, length)
            if longest == enough:
                break
        return longest


AnyTrie: TypeAlias = ContextTrie | NativeTrie


def make_trie(max_context: int) -> AnyTrie:
    """Return a trie in native code, or in Python where no kernels can be built."""
    return NativeTrie(max_context) if runs_here() else ContextTrie(max_context)


def _positions(entry: Entry | None) -> list[int]:
    """Return the occurrences of an entry that is no Fork, none for None."""
    if isinstance(entry, list):
        return entry
    return [entry] if isinstance(entry, int) else []
