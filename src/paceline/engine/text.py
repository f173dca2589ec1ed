"""Tokens to text, one at a time, holding back what may still change or be part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.models.tokenizer import UNFINISHED, Pieces, Tokenizer

CONTEXT = 5  # prompt tokens that the first output tokens are decoded with: spacing depends on them
KEPT = 8  # of many pending tokens, so many of the first and of the last: more than a character has


class TextStream:
    """Incremental text of one stream.

    push() returns text that is final: complete characters that cannot become part of a stop string.
    flush() returns what is left when the stream ends. When either meets a stop string, `stopped_by`
    names it and the text ends before it. A stop string that begins in the text of a token pushed
    without `check_stop` is plain text; a character belongs to the token that completes it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
        pieces: Pieces | None = None,
    ) -> None:
        """`pieces` is what streams of the same tokenizer share; without it all is decoded anew."""
        self._decode, self._pieces = tokenizer.backend_tokenizer.decode, pieces
        self._hides = (pieces or Pieces(tokenizer)).hides
        self._skip = skip_special_tokens
        self._stop = tuple(stop)
        self._ids = list(prompt_ids[-CONTEXT:])
        self._prefix = 0  # decoding starts here ...
        self._read = len(self._ids)  # ... and what lies before here was given out already
        self._given = self._text(self._ids)
        self._held = ""
        self._exempt = 0  # leading characters of the text not given out where no stop may begin
        self._checked = True  # the last token was pushed with check_stop
        self.stopped_by: str | None = None

    def push(self, token: int, check_stop: bool = True) -> str:
        """Adds a token; returns the text it makes final, often with some that was held back."""
        fresh = ""
        if self._pieces is not None and self._read == len(self._ids):
            fresh = self._pieces.of(token, skip_special_tokens=self._skip)
        known = bool(fresh)
        if not known and self._hides(token, skip_special_tokens=self._skip):
            self._checked = check_stop
            return ""
        self._ids.append(token)
        if not known:
            text = self._text(self._ids[self._prefix :])
            fresh = text[len(self._given) :]
        self._checked = check_stop
        if not check_stop:
            self._exempt = len(self._held) + len(fresh.rstrip(UNFINISHED))
        if not fresh or fresh.endswith(UNFINISHED):
            crowded = len(self._ids) - self._read > 2 * KEPT
            return self._give_up_on(fresh, check_stop) if crowded else ""
        self._prefix, self._read = self._read, len(self._ids)
        self._given = fresh if known else self._text(self._ids[self._prefix :])
        return self._release(self._held + fresh) if self._stop else fresh

    def flush(self) -> str:
        """The rest, at the end of the stream: unfinished characters and held-back text."""
        if self.stopped_by is not None:
            return ""
        text = self._text(self._ids[self._prefix :])
        rest = self._held + text[len(self._given) :]
        if self._checked:
            rest = self._release(rest) + self._held
        self._held, self._given = "", text
        return rest

    def _give_up_on(self, fresh: str, check_stop: bool) -> str:
        """Return the final part of `fresh`, the text of too many pending tokens, and drop those in
        the middle: only the last character can still change.

        The last tokens tell how a character has begun. Where the bytes of several tokens are one
        character or none is, the first ones tell that none will be.
        """
        end = self._read + KEPT
        text = self._text(self._ids[self._prefix : end] + self._ids[-KEPT:])
        if fresh and not text.endswith(UNFINISHED):
            return ""
        del self._ids[end:-KEPT]
        self._given, final = text[: len(text) - bool(fresh)], fresh[:-1]
        if not check_stop:
            self._exempt = len(self._held) + len(final)
        return self._release(self._held + final)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._decode(ids, skip_special_tokens=self._skip))

    def _release(self, pending: str) -> str:
        """The beginning of `pending` that is final; the rest is held, or dropped at a stop."""
        if not self._stop:
            return pending
        stops = [(pending.find(s, self._exempt), s) for s in self._stop]
        stops = [(at, s) for at, s in stops if at >= 0]
        if stops:
            end, self.stopped_by = min(stops)
            self._held = ""
            return pending[:end]
        end = len(pending) - self._overlap(pending[self._exempt :])
        self._exempt, self._held = max(0, self._exempt - end), pending[end:]
        return pending[:end]

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that some stop string begins with."""
        longest = min(max(map(len, self._stop), default=1) - 1, len(text))
        ends = (size for size in range(longest, 0, -1) if self._begins_stop(text[-size:]))
        return next(ends, 0)

    def _begins_stop(self, end: str) -> bool:
        return any(len(stop) > len(end) and stop.startswith(end) for stop in self._stop)
