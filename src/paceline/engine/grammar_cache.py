"""Results of recent compilations: the same grammar is compiled and tried out once."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field

from llguidance import LLMatcher

from paceline.core import Grammar

MOST = 256  # grammars
MOST_BYTES = 256 << 20  # of compiled matchers


@dataclass(slots=True)
class Entry:
    matcher: Future[LLMatcher] = field(default_factory=Future)
    bytes: int = 0


class GrammarCache:
    """Matchers, and refusals, by digest of the grammar; the least recently used go first.

    Futures: a grammar that arrives while an equal one is being compiled waits for that.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Future[LLMatcher] | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key].matcher

    def put(self, key: bytes) -> tuple[Future[LLMatcher], bool]:
        """The future of this grammar, and whether the caller is the first and must complete it."""
        with self._lock:
            first = key not in self._entries
            entry = self._entries.setdefault(key, Entry())
            self._shrink()
            return entry.matcher, first

    def weigh(self, key: bytes, size: int) -> None:
        with self._lock:
            if key in self._entries:
                self._entries[key].bytes = size
            self._shrink()

    def drop(self, key: bytes) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def _shrink(self) -> None:
        taken = sum(entry.bytes for entry in self._entries.values())
        while len(self._entries) > MOST or (len(self._entries) > 1 and taken > MOST_BYTES):
            taken -= self._entries.popitem(last=False)[1].bytes


def digest(grammar: Grammar) -> bytes:
    """Equal for grammars that are equal wherever they came from."""
    text = f"{grammar.kind}\n{grammar.source}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
