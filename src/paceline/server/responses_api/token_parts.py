"""The text of an answer, split by its tokens."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core import TokenLogprobs
from paceline.server.tokens import TokenTexts


@dataclass(frozen=True, slots=True)
class TokenPart:
    """The text of one token and its log-probabilities; or text that no token was found for."""

    text: str
    rows: tuple[TokenLogprobs, ...] = ()


class TokenParts:
    """Splits a text that comes in pieces. Text may come later than its tokens, but no earlier: the
    engine holds back half characters and what may become a stop string."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._waiting: deque[tuple[str, TokenLogprobs]] = deque()
        self._text = ""
        self._begun = False

    def feed(
        self, text: str, rows: Sequence[TokenLogprobs], *, last: bool = False
    ) -> list[TokenPart]:
        """Return the parts that `text` and the tokens of `rows` complete; with `last`, all that are
        left. A token that the text does not show, such as the last one, has an empty part."""
        self._waiting += [(self._decode(self._texts[row.token][1]), row) for row in rows]
        self._text += text
        parts: list[TokenPart] = []
        place = 0
        while self._waiting:
            token, row = self._waiting[0]
            if not self._begun and token[:1] == " " and self._text[:1] not in ("", " "):
                token = token[1:]  # SentencePiece's space at the start of a text
            if self._text.startswith(token, place):
                place += len(token)
                self._begun = self._begun or bool(token)
            elif not last and self._begins_with_rest(token, place):
                break
            else:
                token = ""
            parts.append(TokenPart(token, (row,)))
            self._waiting.popleft()
        self._text = self._text[place:]
        if self._text and not self._waiting:
            parts.append(TokenPart(self._text))
            self._text = ""
        return parts

    def _begins_with_rest(self, token: str, place: int) -> bool:
        return len(self._text) - place < len(token) and token.startswith(self._text[place:])
