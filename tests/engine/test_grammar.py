"""What a grammar allows: masks row by row, drafts made to fit, forced tokens, refusals."""

from __future__ import annotations

import copy
import json
import random
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from paceline.core import Grammar, InvalidRequest, SamplingParams
from paceline.engine import grammar as grammar_module
from paceline.engine.grammar import Compiler, GrammarFailed, GrammarState, to_llguidance
from paceline.models.catalog import pull
from tests.engine.tiny import EOS, VOCAB, byte_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["celsius", "fahrenheit", "kelvin"]},
        "level": {"type": "integer", "minimum": 0, "maximum": 500},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "b"]}, "maxItems": 3},
    },
    "required": ["name", "unit", "level", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar("json_schema", json.dumps(SCHEMA)),
    "regex": Grammar("regex", r"(yes|no|maybe), since [0-9]{1,4}( and [a-f]+)?"),
    "lark": Grammar("lark", 'start: N (("+" | "-") N)*\nN: /[0-9]{1,3}/'),
}
WORDS = -(-VOCAB // 32)


@cache
def compiler() -> Compiler:
    return Compiler(byte_tokenizer(), VOCAB, {EOS})


def state(grammar: Grammar, said: list[int] | None = None) -> GrammarState:
    made = GrammarState(compiler().compile(grammar), EOS)
    for token in said or []:
        made.advance(token)
    return made


def masks(grammar_state: GrammarState, draft: list[int], **options: Any) -> np.ndarray:
    """bool [rows, vocabulary]"""
    words = np.zeros((len(draft) + 1, WORDS), dtype=np.uint32)
    grammar_state.fill(words, draft, **options)
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)


def random_walk(grammar: Grammar, seed: int, most: int = 200) -> list[int]:
    """Tokens drawn evenly from what is allowed, up to the end of the text."""
    rng, said, walker = random.Random(seed), [], state(grammar)
    while len(said) < most:
        token = rng.choice(np.flatnonzero(masks(walker, [])[0]).tolist())
        if token == EOS:
            break
        said.append(token)
        walker.advance(token)
    return said


def ids(text: str) -> list[int]:
    return byte_tokenizer()(text)["input_ids"]


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_of_a_draft_are_those_of_the_text_it_makes(name: str) -> None:
    """Row by row, for drafts that are valid, wrong at some place, or run past the end; and the
    state stands where it stood."""
    grammar = GRAMMARS[name]
    rng = random.Random(1)
    for seed in range(15):
        said = random_walk(grammar, seed)
        at = rng.randrange(len(said))
        walker = state(grammar, said[:at])
        before = masks(walker, [])
        draft = said[at : at + 8]
        if seed % 3 == 1:
            draft[rng.randrange(len(draft))] = rng.randrange(VOCAB)
        rows = masks(walker, draft)
        valid = walker.valid(draft)
        for row in range(valid + 1):
            truth = masks(state(grammar, said[:at] + draft[:row]), [])[0]
            assert (rows[row] == truth).all()
        assert not rows[valid + 1 :].any(), "rows behind a token that is not allowed"
        assert (masks(walker, []) == before).all()


@pytest.mark.model
def test_looking_ahead_leaves_no_trace() -> None:
    """A draft is walked along on a copy. With llguidance's rollback instead, the first `fill` below
    made the strings of the second object end like values where they are keys."""
    words = AutoTokenizer.from_pretrained(pull("smollm2-135m"))
    own = Compiler(words, len(words), {words.eos_token_id})

    def tokens(text: str) -> list[int]:
        return list(words(text)["input_ids"])

    def look(walker: GrammarState, draft: list[int]) -> np.ndarray:
        rows = np.zeros((len(draft) + 1, -(-len(words) // 32)), dtype=np.uint32)
        walker.fill(rows, draft)
        return rows[0].copy()

    start = own.compile(Grammar("json_schema", '{"type": "array"}'))
    walker, plain = (GrammarState(start, words.eos_token_id) for _ in range(2))
    draft = tokens('ristiano", "season": "')
    for token in tokens('[{"id": "1", "name": "Cristiano"}, {"id": "2"}]'):
        assert (look(walker, draft) == look(plain, [])).all()
        walker.fit(draft, 15)
        walker.advance(token)
        plain.advance(token)


@pytest.mark.parametrize("name", GRAMMARS)
def test_forced_is_what_a_single_allowed_token_leads_to(name: str) -> None:
    """At every place of random texts: forced tokens one after the other are the mask's only one,
    and where the mask has only one there are forced tokens."""
    grammar, found = GRAMMARS[name], 0
    for seed in range(10):
        said = random_walk(grammar, seed)
        walker = state(grammar)
        for token in [*said, None]:
            allowed = np.flatnonzero(masks(walker, [])[0])
            forced = walker.forced()
            assert (len(allowed) == 1) == bool(forced)
            rows = masks(walker, forced[:-1]) if forced else []
            assert [np.flatnonzero(row).tolist() for row in rows] == [[t] for t in forced]
            found += len(forced) > 1
            if token is None:
                break
            walker.advance(token)
    assert found or name == "lark"


def test_fit_keeps_what_is_allowed_and_puts_in_what_is_forced() -> None:
    walker = state(GRAMMARS["schema"], ids('{"name": "Bo'))
    # The draft goes on, closes the string too early, and is then somewhere else than the grammar.
    fitted, origin = walker.fit(ids('b", "level'), room=30)
    assert byte_tokenizer().decode(fitted) == 'b", "unit": "'
    assert origin == [0, 1, *[None] * (len(fitted) - 2)]
    # What was foreseen stays the draft's; it goes on behind.
    fitted, origin = walker.fit(ids('b", "unit": "kel'), room=40)
    assert byte_tokenizer().decode(fitted) == 'b", "unit": "kelvin", "level": '
    chosen = [i for i, drafted in enumerate(origin) if drafted is not None]
    assert chosen == [0, 1, len('b", "unit": "')] == [origin[i] for i in chosen]
    # Room ends it, in the middle of what is forced as well.
    assert walker.fit(ids('b"'), room=5)[0] == ids('b", "')
    # A token that is not allowed ends it; nothing is made up.
    assert walker.fit(ids("b\x01"), room=9)[0] == ids("b")
    assert walker.fit([], room=0) == ([], [])
    assert masks(walker, []).any(), "the state is where it was"


def test_skipped_rows_are_left_alone() -> None:
    walker = state(GRAMMARS["regex"])
    draft = ids("yes, s")
    words = np.full((len(draft) + 1, WORDS), 7, dtype=np.uint32)
    walker.fill(words, draft, skip={3, 4})
    assert (words[3] == 7).all() and (words[4] == 7).all()
    assert not (words[[0, 1, 2, 5, 6]] == 7).all(axis=1).any()


def test_a_token_that_is_not_allowed_ends_a_walk() -> None:
    walker = state(GRAMMARS["regex"])
    with pytest.raises(GrammarFailed):
        walker.advance(ids("z")[0])


def test_equal_grammars_are_compiled_once() -> None:
    own = Compiler(byte_tokenizer(), VOCAB, {EOS})
    first = own.compile(Grammar("regex", "a+", "here"))
    assert own.compile(Grammar("regex", "a+", "there")) is first
    assert own.compile(Grammar("regex", "b+")) is not first


def test_a_model_that_cannot_end_a_text_has_no_grammars() -> None:
    with pytest.raises(InvalidRequest, match="end-of-text"):
        Compiler(byte_tokenizer(), VOCAB, ()).compile(GRAMMARS["regex"])


def test_a_complete_text_ends_with_the_tokenizers_own_token() -> None:
    words = copy.deepcopy(byte_tokenizer())
    words.add_special_tokens({"eos_token": "("})
    assert words.eos_token_id > EOS
    assert Compiler(words, VOCAB, {EOS, words.eos_token_id}).eos_ids == [words.eos_token_id, EOS]


def test_a_slow_grammar_keeps_nobody_waiting_for_a_known_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, known = Compiler(byte_tokenizer(), VOCAB, {EOS}), Grammar("regex", "a+")
    own.compile(known)
    slow, done = threading.Event(), threading.Event()

    def translate(grammar: Grammar) -> str:
        slow.set()
        assert done.wait(20)
        return to_llguidance(grammar)

    monkeypatch.setattr(grammar_module, "to_llguidance", translate)
    thread = threading.Thread(target=lambda: own.compile(Grammar("regex", "b+")))
    thread.start()
    assert slow.wait(20)
    own.compile(known)
    done.set()
    thread.join(20)
    assert not thread.is_alive()


def test_white_space_is_that_of_json_dumps() -> None:
    for seed in range(5):
        text = byte_tokenizer().decode(random_walk(GRAMMARS["schema"], seed))
        assert json.dumps(json.loads(text), ensure_ascii=False) == text or "\\" in text
    loose = {**SCHEMA, "x-guidance": {"whitespace_flexible": True}}
    walker = state(Grammar("json_schema", json.dumps(loose)), ids('{\n\t"name"'))
    assert not walker.forced()


REFUSED: list[tuple[Any, str, str]] = [
    ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, ".properties.a", "uniqueItems"),
    ({"items": {"not": {"type": "string"}}}, ".items", "not"),
    ({"anyOf": [{"type": "null"}, {"contains": {"type": "null"}}]}, ".anyOf[1]", "contains"),
    ({"$defs": {"x": {"if": {}}}, "$ref": "#/$defs/x"}, ".$defs.x", "if"),
    ({"properties": {"if": {"format": "shoe"}}}, ".properties.if", "format"),
    ({"properties": {"a": {"type": "strin"}}}, ".properties.a", "type"),
    ({"properties": {"a": {"pattern": "(?=x)y"}}}, ".properties.a", "pattern"),
    ({"items": {"$ref": "#/$defs/nope"}}, ".items", "$ref"),
    ({"definitions": {}, "items": {"$ref": "https://x.y/definitions.json#/z"}}, ".items", "$ref"),
    ({"anyOf": [{"oneOf": [{"type": "string"}, {"minLength": 3}]}]}, ".anyOf[0]", "oneOf"),
    ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "", "oneOf"),
    ({"minimum": 5, "maximum": 3, "type": "integer"}, "", "minimum"),
]


@pytest.mark.parametrize(("schema", "place", "keyword"), REFUSED)
def test_a_schema_that_cannot_be_kept_is_refused_by_keyword_and_place(
    schema: dict[str, Any], place: str, keyword: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compiler().compile(Grammar("json_schema", json.dumps(schema), "schema"))
    assert refused.value.field.startswith(f"schema{place}")
    assert refused.value.field.endswith(f".{keyword}")
    assert keyword in str(refused.value)


def test_keywords_are_not_looked_for_in_data() -> None:
    schema = {
        "properties": {"not": {"enum": [{"not": 1}], "default": {"not": 2}}},
        "items": {"not": {}},
    }
    with pytest.raises(InvalidRequest) as refused:
        compiler().compile(Grammar("json_schema", json.dumps(schema), "schema"))
    assert refused.value.field == "schema.items.not"


@pytest.mark.parametrize(("kind", "source"), [("regex", "a(b"), ("lark", "start: nowhere")])
def test_other_grammars_are_refused_with_their_reason(kind: str, source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"(?s)here: got .*(unclosed group|unknown name)"):
        compiler().compile(Grammar(kind, source, "here"))


@pytest.mark.parametrize("source", ["[1]", "5", "null", '"x"', "{"])
def test_what_is_no_schema_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="here"):
        compiler().compile(Grammar("json_schema", source, "here"))


def test_a_schema_cannot_ask_to_be_treated_leniently() -> None:
    schema = {"not": {"type": "string"}, "x-guidance": {"lenient": True}}
    with pytest.raises(InvalidRequest, match="'not'"):
        compiler().compile(Grammar("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(("field", "value"), [("ignore_eos", True), ("min_tokens", 3)])
def test_a_grammar_decides_when_the_output_ends(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field):
        SamplingParams(max_tokens=5, grammar=GRAMMARS["regex"], **{field: value})
    with pytest.raises(InvalidRequest, match=r"grammar\.kind.*ebnf"):
        Grammar("ebnf", "x")
