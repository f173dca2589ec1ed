"""Context tries in native code: see drafters/context_trie.py, which is the specification."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_double, c_int32, c_int64, c_void_p
from functools import cache

from paceline.kernels import build


class NativeTrie:
    """A ContextTrie whose contexts lie in native memory. One thread at a time may use it.

    Token ids are below 2³¹. A call takes some microseconds, and longer with every token that it
    adds or drafts: 0.3 to 1 µs.
    """

    def __init__(self, max_context: int) -> None:
        """Raises BuildError where the kernels cannot be built."""
        self._library = _library()
        self.max_context = max_context
        self._trie = c_void_p(self._library.pl_trie_new(max_context))

    def __del__(self) -> None:
        trie = getattr(self, "_trie", None)  # none after an error in __init__
        if trie is not None:
            self._library.pl_trie_free(trie)

    @property
    def estimated_bytes(self) -> int:
        return int(self._library.pl_trie_bytes(self._trie))

    def __len__(self) -> int:
        """Return the number of tokens held, with boundaries."""
        return int(self._library.pl_trie_size(self._trie))

    def begin_text(self, context: Sequence[int] = ()) -> None:
        """Start a text, with tokens that serve as context only: they are never proposed."""
        ids = array("i", context)
        self._library.pl_trie_begin_text(self._trie, *ids.buffer_info())

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text begun last, each counted as what followed its contexts."""
        ids = array("i", tokens)
        self._library.pl_trie_extend(self._trie, *ids.buffer_info())

    def forget(self, context: int, counted: int) -> None:
        """Take out the oldest text, which began with `context` tokens and grew by `counted`."""
        # this may take long where it is much, and others need not wait for it
        build.load().library.pl_trie_forget(self._trie, context, counted)

    def draft(
        self, context: Sequence[int], length: int, floor: float
    ) -> tuple[list[int], list[float]]:
        """Return the most frequent continuation of `context`, and estimates: see draft_from()."""
        window = array("i", context[-self.max_context :])
        tokens, estimates = (c_int32 * length)(), (c_double * length)()
        count = self._library.pl_trie_draft(
            self._trie, *window.buffer_info(), length, floor, tokens, estimates
        )
        return tokens[:count], estimates[:count]


@cache
def _library() -> ctypes.PyDLL:
    """Return the kernels for short calls. Raises BuildError."""
    native, library = build.load().library, build.held()
    ids = (c_void_p, c_int64)
    signatures = {
        "pl_trie_new": (c_void_p, c_int64),
        "pl_trie_free": (None, c_void_p),
        "pl_trie_begin_text": (None, c_void_p, *ids),
        "pl_trie_extend": (None, c_void_p, *ids),
        "pl_trie_draft": (c_int64, c_void_p, *ids, c_int64, c_double, c_void_p, c_void_p),
        "pl_trie_size": (c_int64, c_void_p),
        "pl_trie_bytes": (c_int64, c_void_p),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    native.pl_trie_forget.argtypes = c_void_p, c_int64, c_int64
    native.pl_trie_forget.restype = None
    return library
