"""Tokens to text, one at a time, holding back what may still change or be part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CONTEXT = 5  # prompt tokens that the first output tokens are decoded with: spacing depends on them
UNFINISHED = "�"  # what a decoder prints for bytes that are not a whole character yet


class TextStream:
    """Incremental text of one stream.

    push() returns text that is final: complete characters that cannot become part of a stop string.
    When a stop string appears, `stopped_by` names it and the text ends before it.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._decode = tokenizer.backend_tokenizer.decode
        self._skip = skip_special_tokens
        self._stop = tuple(stop)
        self._ids = list(prompt_ids[-CONTEXT:])
        self._prefix = 0  # decoding starts here ...
        self._read = len(self._ids)  # ... and what lies before here was given out already
        self._given = self._text(self._ids)
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, token: int, *, check_stop: bool = True) -> str:
        """Adds a token; returns the text it makes final, often with some that was held back."""
        self._ids.append(token)
        text = self._text(self._ids[self._prefix :])
        if len(text) <= len(self._given) or text.endswith(UNFINISHED):
            return ""
        return self._advance(text, check_stop)

    def flush(self) -> str:
        """The rest, at the end of the stream: unfinished characters and held-back text."""
        if self.stopped_by is not None:
            return ""
        text = self._text(self._ids[self._prefix :])
        rest = self._held + text[len(self._given) :]
        self._held, self._given = "", text
        return rest

    # -- inside ---------------------------------------------------------------------------------

    def _text(self, ids: Sequence[int]) -> str:
        return self._decode(ids, skip_special_tokens=self._skip)

    def _advance(self, text: str, check_stop: bool) -> str:
        fresh = text[len(self._given) :]
        self._prefix, self._read = self._read, len(self._ids)
        self._given = self._text(self._ids[self._prefix :])
        if not self._stop:
            return fresh
        pending = self._held + fresh
        if not check_stop:
            self._held = ""
            return pending
        found = [(pending.find(s), s) for s in self._stop if s in pending]
        if found:
            at, self.stopped_by = min(found)
            self._held = ""
            return pending[:at]
        keep = self._overlap(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that some stop string begins with."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
