"""Refusals of prompts that cannot fit the context, before they are rendered and tokenised."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

from paceline.core.errors import Amount, InvalidRequest
from paceline.models.tokenizer import Tokenizer
from paceline.server.errors import invalid
from paceline.server.fields import JsonObject

PLAIN_BYTES = 6  # per token of the context: text up to this is tokenised at once (English has 4.5)
PIECE = 65536  # characters that are counted at a time
MARGIN = 2  # contexts of tokens, counted by pieces, past which a text cannot fit
DROPPING = ('"Removed"', '"Whitespace"', '"WhitespaceSplit"', '"BertPreTokenizer"')


class PromptSize:
    """Refuses prompts that are too long: ApiError (400, `context_length_exceeded`)."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._context = max_model_len
        self._most_bytes = longest_token(tokenizer) * max_model_len

    def refuse_messages(self, field: str, count: int) -> None:
        """Refuse more messages than the context has tokens; each message takes at least one."""
        if count > self._context:
            expected = f"at most {self._context}, as many as the context has tokens"
            self._refuse(field, f"{count} messages", expected)

    def refuse_texts(self, field: str, texts: Iterable[str]) -> None:
        """Refuse texts of more bytes than the context could hold if each token were the longest
        of the vocabulary."""
        total = sum(map(utf8_length, texts))
        if total > self._most_bytes:
            self._refuse(field, f"{total} bytes")

    def refuse_tokens(self, field: str, text: str) -> None:
        """Refuse a text of far more tokens than the context has. At most MARGIN contexts of them
        are counted, and a text of PLAIN_BYTES per token is not counted at all.

        Tokens are counted in pieces of the text. A cut adds tokens only to what it cuts apart: a
        word where the tokenizer has words, else what a chain of merges spans, which is short
        beside PIECE. So the whole has at least a MARGIN-th of the tokens of its pieces.
        """
        if utf8_length(text) <= PLAIN_BYTES * self._context:
            return
        self.refuse_texts(field, [text])
        count = 0
        for start in range(0, len(text), PIECE):
            count += len(token_ids(self._tokenizer, text[start : start + PIECE], special=False))
            if count > MARGIN * self._context:
                self._refuse(field, f"{len(text)} characters")

    def _refuse(self, field: str, amount: str, expected: str | None = None) -> NoReturn:
        expected = expected or f"fewer than {self._context} tokens, the context length"
        error = InvalidRequest(field, Amount(amount), expected)
        raise invalid(error, "context_length_exceeded")


def token_ids(backend: Any, text: str, *, special: bool) -> list[int]:
    """Return the token ids of `text`; `special` adds those that start or end every text.

    `backend` is a tokenizers.Tokenizer. The call lets other threads run, unlike `encode()`, and
    changes nothing in the tokenizer, unlike transformers' `tokenizer()`: so two threads may do it.
    """
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=special)[0].ids
    return ids


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def longest_token(tokenizer: Tokenizer) -> float:
    """Return the most bytes of text that one token can stand for, infinity without such a bound:
    a tokenizer may drop spaces, or take all that it does not know for one token."""
    backend = tokenizer.backend_tokenizer
    split = _state(backend.pre_tokenizer)
    byte_level = '"ByteLevel"' in split
    if not (byte_level or getattr(backend.model, "byte_fallback", False)):
        return math.inf
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added) or any(k in split for k in DROPPING):
        return math.inf
    pieces = backend.get_vocab(with_added_tokens=False)
    # a character of a byte-level piece is a byte; any other piece is text
    longest = max(map(len if byte_level else utf8_length, pieces), default=1)
    longest = max([longest, *(utf8_length(token.content) for token in added)])
    return longest * _shrinkage(json.loads(_state(backend.normalizer)))


def _shrinkage(normaliser: JsonObject | None) -> float:
    """Return how many bytes of a text may become one."""
    match normaliser:
        case None | {"type": "Prepend"} | {"type": "Replace", "content": "▁"}:
            return 1  # SentencePiece's marks for spaces
        case {"type": "NFC"}:
            return 3  # three Hangul letters, a syllable
        case {"type": "Sequence", "normalizers": parts}:
            return math.prod(map(_shrinkage, parts))
    return math.inf


def _state(part: Any) -> str:
    return "null" if part is None else part.__getstate__().decode()
