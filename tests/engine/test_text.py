"""Text leaves in final form: nothing that could be part of a stop string, no half characters."""

from __future__ import annotations

import random

import pytest

from paceline.engine.text import TextStream
from tests.engine.tiny import byte_tokenizer


def run(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, tokenizer("prompt: ")["input_ids"], stop)
    pieces = []
    for token in tokenizer(text)["input_ids"]:
        pieces.append(stream.push(token))
        if stream.stopped_by is not None:
            break
    pieces.append(stream.flush())
    return pieces, stream


@pytest.mark.parametrize("text", ["plain text", "naïve café ☕ 日本語 👩‍👩‍👧", "\n\n  spaces  "])
def test_pieces_join_to_the_text_and_are_whole_characters(text: str) -> None:
    pieces, _ = run(text)
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)


def test_unfinished_character_at_the_end_is_shown_as_such() -> None:
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, [], ())
    ids = tokenizer("a☕")["input_ids"]
    text = "".join(stream.push(i) for i in ids[:-1]) + stream.flush()
    assert text == "a�"


def test_text_ends_before_the_stop_string_and_names_it() -> None:
    pieces, stream = run("one two END three", ("nothing", "END"))
    assert "".join(pieces) == "one two " and stream.stopped_by == "END"


def test_the_stop_string_that_comes_first_wins() -> None:
    pieces, stream = run("ab STOP cd", ("STOP", "b S"))
    assert stream.stopped_by == "b S" and "".join(pieces) == "a"


def test_what_may_become_a_stop_string_is_held_until_it_cannot() -> None:
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, [], ("###",))
    out = [stream.push(i) for i in tokenizer("x##y")["input_ids"]]
    assert out == ["x", "", "", "##y"]
    out = [stream.push(i) for i in tokenizer("##")["input_ids"]]
    assert out == ["", ""] and stream.flush() == "##"


def test_nothing_streamed_is_ever_part_of_a_stop_string() -> None:
    rng = random.Random(5)
    for _ in range(300):
        text = "".join(rng.choice("aab☕") for _ in range(rng.randrange(1, 20)))
        stop = tuple("".join(rng.choice("ab☕") for _ in range(rng.randrange(1, 4))) for _ in "12")
        pieces, stream = run(text, stop)
        # The stream ends with the token that completes a stop string, whichever is complete first.
        ends = [n for n in range(len(text) + 1) if any(s in text[:n] for s in stop)]
        seen = text[: ends[0]] if ends else text
        cut = min((seen.find(s) for s in stop if s in seen), default=len(text))
        assert "".join(pieces) == text[:cut]
        assert (stream.stopped_by is not None) == bool(ends)
