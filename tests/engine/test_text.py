"""Text leaves in final form: nothing that could be part of a stop string, no half characters."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from paceline.core import FinishReason, Request, SamplingParams, TokenKind
from paceline.engine import text as text_module
from paceline.engine.grammar import GrammarFailed, GrammarState
from paceline.engine.output import Commit, Output
from paceline.engine.text import TextStream
from paceline.models.tokenizer import Pieces
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


def joining_tokenizer() -> Any:
    """A tokenizer of single bytes and of tokens that end in the middle of a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    of_byte = bytes_to_unicode()
    joined = [b"ab\xe2", b"\xe2\x98", b"b\xf0\x9f", b"a\xff", b"\x95ba", b"ba", b"\x98\x95"]
    vocabulary = alphabet + ["".join(of_byte[byte] for byte in token) for token in joined]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(vocabulary)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def first_stop(text: str, stop: tuple[str, ...], start: int = 0) -> tuple[int, str] | None:
    stops = [(text.find(s, start), s) for s in stop]
    return min([(at, s) for at, s in stops if at >= 0], default=None)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "pieces shared"])
@pytest.mark.parametrize("minimum", [0, 3])
def test_random_bytes_end_before_the_first_stop_string_of_the_whole_text(
    minimum: int, shared: bool
) -> None:
    """`minimum` tokens are pushed unchecked: a stop string may begin in the text after them."""
    tokenizer, rng = joining_tokenizer(), random.Random(minimum)
    pieces = Pieces(tokenizer) if shared else None
    letters = [tokenizer.convert_tokens_to_ids(c) for c in ("a", "b")]
    broken = [tokenizer.convert_tokens_to_ids(bytes_to_unicode()[b]) for b in b"\xe2\x98\x95\xff"]
    choices = [*letters, *broken, *range(256, len(tokenizer))]
    decode = tokenizer.backend_tokenizer.decode
    stopped = flushed = 0
    for _ in range(6000):
        ids = rng.choices(choices, k=rng.randrange(1, 12))
        stop = tuple("".join(rng.choices("aab☕\ufffd", k=rng.randrange(1, 4))) for _ in "12")
        stream, text, used = TextStream(tokenizer, [], stop, pieces=pieces), "", 0
        for used, token in enumerate(ids, 1):
            text += stream.push(token, check_stop=used > minimum)
            if stream.stopped_by is not None:
                break
        at_flush = stream.stopped_by is None
        text += stream.flush()
        whole = decode(ids[:used], skip_special_tokens=True)
        start = len(decode(ids[:minimum], skip_special_tokens=True).rstrip("\ufffd"))
        expected = first_stop(whole, stop, start) if used > minimum else None
        if expected is None:
            assert (text, stream.stopped_by) == (whole, None), (ids, stop)
        else:
            assert (text, stream.stopped_by) == (whole[: expected[0]], expected[1]), (ids, stop)
            stopped, flushed = stopped + 1, flushed + at_flush
        if at_flush:
            assert used == len(ids)
        assert stream.flush() == ""
    assert stopped > 1000 and flushed > 100


def test_only_tokens_whose_text_their_neighbours_do_not_change_have_pieces() -> None:
    tokenizer = joining_tokenizer()
    pieces, texts = Pieces(tokenizer), set()
    for token in range(len(tokenizer)):
        piece = pieces.of(token, skip_special_tokens=True)
        assert piece in ("", tokenizer.decode([token]))
        texts.add(piece)
    assert {"a", "ba"} <= texts and not any("\ufffd" in text for text in texts)
    spaced = tokenizer.backend_tokenizer
    spaced.decoder = decoders.Metaspace()  # drops the space before a first token
    assert Pieces(tokenizer).of(0, skip_special_tokens=True) == ""


def special_tokenizer() -> Any:
    """The joining tokenizer with two special tokens."""
    tokenizer = joining_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>", "<pad>"]})
    return tokenizer


def fallback_tokenizer() -> Any:
    """A tokenizer that writes what is not in its vocabulary as tokens of single bytes."""
    vocabulary = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "a",
        "\u2581b",
        "☕",
    ]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(vocabulary)}, []))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wrapped.add_special_tokens({"additional_special_tokens": ["<end>"]})
    return wrapped


class Counting:
    """A tokenizer that counts the ids it is given to decode."""

    def __init__(self, tokenizer: Any) -> None:
        self.decoded, backend = 0, tokenizer.backend_tokenizer
        self.backend_tokenizer = SimpleNamespace(
            decode=self.decode,
            decoder=backend.decoder,
            id_to_token=backend.id_to_token,
            get_added_tokens_decoder=backend.get_added_tokens_decoder,
        )
        self._decode = backend.decode

    def decode(self, ids: list[int], **options: Any) -> str:
        self.decoded += len(ids)
        return str(self._decode(ids, **options))


ENDLESS = {
    "a byte": [b"\x80"],
    "first bytes": [b"\xf0"],
    "bytes of no character": [b"\xe2", b"\x98", b"\xff"],
    "a special token": ["<end>"],
    "an id without a token": [100_000],
    "special tokens between bytes": [b"\xf0", "<end>", "<end>", b"\x9f"],
}


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("kind", ["pieces shared", "alone", "byte fallback"])
def test_the_work_of_a_token_does_not_grow_with_text_that_stays_unfinished(
    case: str, kind: str
) -> None:
    tokenizer = fallback_tokenizer() if kind == "byte fallback" else special_tokenizer()

    def of(token: bytes | str | int) -> int:
        if isinstance(token, int):
            return token
        if isinstance(token, bytes):
            byte = (
                f"<0x{token[0]:02X}>" if kind == "byte fallback" else bytes_to_unicode()[token[0]]
            )
            return int(tokenizer.convert_tokens_to_ids(byte))
        return int(tokenizer.convert_tokens_to_ids(token))

    period = [of(token) for token in ENDLESS[case]]
    ids = period * (1000 // len(period))
    counting = Counting(tokenizer)
    pieces = None if kind == "alone" else Pieces(cast(Any, counting))
    stream, text = TextStream(cast(Any, counting), [of("a")] * 5, pieces=pieces), ""
    for token in ids:
        text += stream.push(token)
    assert counting.decoded < 60 * len(ids)
    text += stream.flush()
    whole = tokenizer.backend_tokenizer.decode([of("a"), *ids], skip_special_tokens=True)
    assert text == whole[1:]


@pytest.mark.parametrize("skip", [True, False], ids=["special tokens skipped", "shown"])
@pytest.mark.parametrize("kind", ["pieces shared", "alone", "byte fallback"])
def test_long_unfinished_text_is_what_decoding_all_of_it_gives(
    kind: str, skip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With byte fallback a byte can spoil characters before it. Then the reference is a stream
    that keeps all pending tokens."""
    rng, fallback = random.Random(skip), kind == "byte fallback"
    tokenizer = fallback_tokenizer() if fallback else special_tokenizer()
    bytes_of = [
        f"<0x{b:02X}>" if fallback else bytes_to_unicode()[b] for b in b"\xe2\x98\x95\xf0\xff"
    ]
    broken = [tokenizer.convert_tokens_to_ids(text) for text in bytes_of]
    others = [*(tokenizer.convert_tokens_to_ids(text) for text in ("a", "<end>")), 100_000]
    others += [] if fallback else range(256, len(tokenizer))
    pieces = None if kind == "alone" else Pieces(tokenizer)

    def streamed(ids: list[int]) -> str:
        stream = TextStream(tokenizer, [others[0]] * 5, skip_special_tokens=skip, pieces=pieces)
        return "".join([*map(stream.push, ids), stream.flush()])

    gave_up, give_up_on = [], TextStream._give_up_on
    monkeypatch.setattr(
        TextStream, "_give_up_on", lambda *a: (gave_up.append(1), give_up_on(*a))[1]
    )
    for _ in range(2000):
        many = rng.random() * 0.3
        count = rng.randrange(1, 90)
        ids = [rng.choice(others if rng.random() < many else broken) for _ in range(count)]
        text = streamed(ids)
        if fallback:
            with monkeypatch.context() as patched:
                patched.setattr(text_module, "KEPT", 1000)
                assert text == streamed(ids), ids
        else:
            decode = tokenizer.backend_tokenizer.decode
            assert text == decode(ids, skip_special_tokens=skip), ids
    assert len(gave_up) > 1000


@pytest.mark.parametrize("minimum", [0, 25, 50])
def test_stop_strings_end_text_that_stays_unfinished(minimum: int) -> None:
    """Final characters of `minimum` unchecked tokens begin no stop string, however late they were
    given out."""
    tokenizer = special_tokenizer()
    byte, letter = (tokenizer.convert_tokens_to_ids(bytes_to_unicode()[b]) for b in b"\x80a")
    stop = ("\ufffd" * 3 + "a",)
    stream, text = TextStream(tokenizer, [], stop, pieces=Pieces(tokenizer)), ""
    for number, token in enumerate([byte] * 40 + [letter]):
        text += stream.push(token, check_stop=number >= minimum)
    text += stream.flush()
    assert text == ("\ufffd" * 40 + "a" if minimum == 50 else "\ufffd" * 37)
    assert (stream.stopped_by is None) == (minimum == 50)


@pytest.mark.parametrize("how", ["length", "eos", "stop token", "grammar"])
@pytest.mark.parametrize("minimum", [0, 2, 3])
def test_a_stop_string_behind_an_unfinished_character_ends_the_stream(
    how: str, minimum: int
) -> None:
    tokenizer = joining_tokenizer()
    joined = tokenizer.convert_tokens_to_ids(bytes_to_unicode()[ord("a")])
    last = next(i for i in range(256, len(tokenizer)) if tokenizer.decode([i]) == "ab\ufffd")
    eos = 255
    tokens = [joined, joined, last] + ([eos] if how != "length" else [])
    params = SamplingParams(
        max_tokens=3 if how == "length" else 10,
        min_tokens=minimum,
        stop=("b",),
        stop_token_ids=(eos,) if how == "stop token" else (),
    )
    request = Request(id="r", prompt_ids=[1], params=params, max_tokens=params.max_tokens or 0)
    request.eos_ids = frozenset({eos}) if how == "eos" else frozenset()
    grammar = cast(GrammarState, FailsAtEnd(eos)) if how == "grammar" else None
    output = Output(request, TextStream(tokenizer, [], params.stop), grammar)
    commit = Commit()
    output.commit(commit, tokens, [TokenKind.BONUS] * len(tokens), lambda row, token: None)
    if minimum < 3:
        assert (commit.text, request.stop_reason, commit.error) == ("aaa", "b", None)
        assert request.finish_reason is FinishReason.STOP
    else:  # the stop string lies within the minimum: it is plain text
        assert commit.text == "aaab\ufffd" and request.stop_reason != "b"
        assert (commit.error is not None) == (how == "grammar")


class FailsAtEnd:
    """A grammar that gives up at one token."""

    def __init__(self, token: int) -> None:
        self._token = token

    def check_row(self, row: int) -> None:
        """Every mask was made."""

    def advance(self, token: int) -> None:
        if token == self._token:
            raise GrammarFailed("no way on")
