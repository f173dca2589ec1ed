"""Text and bytes of single tokens, which log-probabilities are labelled with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property

from paceline.models.tokenizer import Tokenizer

SPACE = "▁"  # SentencePiece's space
TokenLabels = Mapping[int, tuple[str, bytes]]  # what a token is called, and its bytes


class TokenTexts(dict[int, tuple[str, bytes]]):
    """Text and bytes of single tokens, each made when it is first asked for.

    A token may hold part of a character; its text is then `bytes:` and the escaped bytes, as OpenAI
    writes it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = set(tokenizer.get_added_vocab().values())

    @cached_property
    def _byte_level(self) -> bool:
        return '"ByteLevel"' in self._tokenizer.backend_tokenizer.to_str()

    def __missing__(self, token: int) -> tuple[str, bytes]:
        raw = self._bytes(token)
        self[token] = _shown(raw), raw
        return self[token]

    def _bytes(self, token: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:  # a row of the head that the tokenizer does not use
            return f"<unused {token}>".encode()
        if token in self._added:
            return str(piece).encode()
        if self._byte_level:
            table = _byte_of_character()
            return bytes(table[character] for character in piece)
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return str(piece).replace(SPACE, " ").encode()


class TokenIdLabels(dict[int, tuple[str, bytes]]):
    """The labels `token_id:17` of tokens, with which vLLM writes them too, and their bytes."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def __missing__(self, token: int) -> tuple[str, bytes]:
        return f"token_id:{token}", self._texts[token][1]


def _shown(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte-level alphabet of GPT-2: printable bytes stand for themselves, the others, in
    order, for the code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [*map(chr, printable), *map(chr, range(256, 256 + len(others)))]
    return dict(zip(characters, [*printable, *others], strict=True))
