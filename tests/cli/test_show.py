"""Which characters of an answer are shown as drafted."""

from __future__ import annotations

from typing import Any

from paceline.cli.show import Figures, KindColours, statistics_line
from paceline.core import OutputDelta, RequestMetrics, Round, SpeculationStats, TokenKind

A, B = TokenKind.ACCEPTED, TokenKind.BONUS


class Bytes:
    """A tokenizer whose tokens are bytes, so that a character may need several."""

    backend_tokenizer: Any
    decoder = None

    def __init__(self) -> None:
        self.backend_tokenizer = self

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def id_to_token(self, token: int) -> str:
        return f"<0x{token:02X}>"

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}


def delta(token_bytes: bytes, kinds: list[TokenKind], text: str) -> OutputDelta:
    return OutputDelta(
        request_id="r", choice=0, token_ids=list(token_bytes), kinds=kinds, text=text
    )


def test_runs_of_one_kind_come_together() -> None:
    colours = KindColours(Bytes())
    runs = list(colours.feed(delta(b"abcd", [A, A, A, B], "abcd")))
    assert runs == [("abc", A), ("d", B)]


def test_a_character_of_several_tokens_has_the_kind_of_the_token_that_completes_it() -> None:
    colours = KindColours(Bytes())
    first = list(colours.feed(delta("é".encode()[:1], [B], "")))
    second = list(colours.feed(delta("é".encode()[1:] + b"!", [A, B], "é!")))
    assert (first, second) == ([], [("é", A), ("!", B)])


def test_text_that_was_held_back_keeps_its_kind() -> None:
    colours = KindColours(Bytes())
    assert list(colours.feed(delta(b"xST", [B, A, A], "x"))) == [("x", B)]
    assert list(colours.feed(delta(b"y", [B], "STy"))) == [("ST", A), ("y", B)]


def test_the_text_is_never_changed_even_when_tokens_decode_otherwise() -> None:
    colours = KindColours(Bytes())
    runs = list(colours.feed(delta(b"ab", [A, A], "abc")))
    assert "".join(text for text, _ in runs) == "abc"


def test_the_statistics_say_how_much_was_accepted() -> None:
    stats = SpeculationStats.of([Round(1, 4, 3), Round(5, 4, 0)])
    metrics = RequestMetrics(queue=0, ttft=0.03, tpot=0.005, total=0.1)
    line = statistics_line(Figures.of(9, stats, metrics))
    assert line == (
        "9 tokens · TTFT 30 ms · TPOT 5.0 ms · AL 2.50 incl. bonus (3 of 8 drafted tokens accepted)"
    )
    assert statistics_line(Figures.of(2, SpeculationStats(), None)) == "2 tokens · nothing drafted"
