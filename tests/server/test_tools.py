"""Tools: the grammar of calls, and the parser that finds them in a stream of text."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from paceline.core import Grammar, InvalidRequest
from paceline.engine.grammar import Compiler, GrammarState
from paceline.engine.tool_calls import (
    HERMES,
    LLAMA3,
    SIGNS,
    ToolFormat,
    calls_grammar,
    format_of,
)
from paceline.server.calls import CallParser
from paceline.server.structured import Function, Tool, chosen_tools, schema_grammar

from .fake import byte_tokenizer

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", 'a"b\\', "}{"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "where": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
                  "additionalProperties": False},
    },
    "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
FUNCTIONS = [Function(name="get_weather", parameters=WEATHER), Function(name="stop.now")]
FORMATS = pytest.mark.parametrize("tool_format", [HERMES, LLAMA3], ids=lambda f: f.name)


def tokenizer(*added: str) -> Any:
    made = copy.deepcopy(byte_tokenizer())
    made.add_tokens(list(added), special_tokens=False)
    return made


TOKENIZERS = {
    "text": tokenizer(),
    "tokens": tokenizer("<tool_call>", "</tool_call>", "<|python_tag|>"),
}


def grammar(tool_format: ToolFormat, words: Any, **wishes: Any) -> Grammar:
    options = {"required": False, "several": True, "final": None, **wishes}
    is_token = words.get_added_vocab().__contains__
    return calls_grammar(tool_format, FUNCTIONS, is_token=is_token, **options)


def say(words: Any, bound: Grammar, seed: int, most: int = 400) -> tuple[str, bool]:
    """A text drawn evenly from what is allowed, and whether it came to its end."""
    end = words.eos_token_id
    state = GrammarState(Compiler(words, len(words), {end}).compile(bound), end)
    rng, said = random.Random(seed), []
    mask = np.zeros((1, -(-len(words) // 32)), dtype=np.uint32)
    while len(said) < most:
        state.fill(mask, [])
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = int(rng.choice(allowed))
        if token == end:
            return words.decode(said), True
        state.advance(token)
        said.append(token)
    return words.decode(said), False


def parse(tool_format: ToolFormat, text: str, rng: random.Random | None = None) -> tuple[str, list]:
    """Content and calls, the text fed in pieces of random lengths; what is streamed must add up."""
    parser, pieces, at = CallParser(tool_format), [], 0
    while at < len(text):
        size = rng.randrange(1, 6) if rng else len(text)
        pieces += parser.feed(text[at : at + size], last=at + size >= len(text))
        at += size
    streamed: dict[int, str] = {}
    for piece in pieces:
        if piece.index >= 0:
            assert piece.begins == (piece.index not in streamed)
            streamed[piece.index] = streamed.get(piece.index, "") + piece.arguments
    assert [streamed[i] for i in range(len(parser.calls))] == [c.arguments for c in parser.calls]
    return "".join(p.content for p in pieces), [(c.name, c.arguments) for c in parser.calls]


@pytest.mark.parametrize("kind", TOKENIZERS)
@FORMATS
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_whatever_is_said_has_calls_that_validate(
    tool_format: ToolFormat, kind: str, choice: str
) -> None:
    words, called = TOKENIZERS[kind], 0
    for seed in range(25):
        bound = grammar(tool_format, words, required=choice == "required")
        text, ended = say(words, bound, seed)
        content, calls = parse(tool_format, text)
        assert parse(tool_format, text, random.Random(seed)) == (content, calls)
        for name, arguments in calls if ended else calls[:-1]:
            schema = WEATHER if name == "get_weather" else {"maxProperties": 0}
            jsonschema.validate(json.loads(arguments), schema)
        called += len(calls)
        if choice == "required":
            assert not ended or (calls and not content)
    assert called or choice == "auto"


@FORMATS
def test_one_call_where_several_are_not_wanted(tool_format: ToolFormat) -> None:
    words = TOKENIZERS["tokens"]
    for seed in range(10):
        text, ended = say(words, grammar(tool_format, words, required=True, several=False), seed)
        assert ended and len(parse(tool_format, text)[1]) == 1


@FORMATS
def test_calls_or_a_final_answer(tool_format: ToolFormat) -> None:
    words = TOKENIZERS["text"]
    final = {
        "type": "object",
        "properties": {"ok": {"enum": [1, 2]}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    both = set()
    for seed in range(20):
        bound = grammar(tool_format, words, final=schema_grammar(final, "response_format"))
        text, ended = say(words, bound, seed)
        content, calls = parse(tool_format, text)
        assert bool(content) != bool(calls)
        if content and ended:
            jsonschema.validate(json.loads(content), final)
        both.add(bool(calls))
    assert both == {True, False}


SAID = [
    (HERMES, "Hi", "Hi", []),
    (HERMES, "Hi <tool_cal", "Hi <tool_cal", []),
    (HERMES, "", "", []),
    (HERMES, "  ", "  ", []),
    (HERMES, 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": "}\\"{"}}\n</tool_call>\n'
     '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "Well.",
     [("f", '{"a": "}\\"{"}'), ("g", "{}")]),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": [1', "", [("f", '{"a": [1')]),
    (LLAMA3, '{"name": "f", "parameters": {"a": {}}}', "", [("f", '{"a": {}}')]),
    (LLAMA3, '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "",
     [("f", "{}"), ("g", "{}")]),
    (LLAMA3, "No { here", "No { here", []),
    (LLAMA3, '{"answer": 5}', '{"answer": 5}', []),
    (LLAMA3, "<|python", "<|python", []),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), SAID)
def test_parser(tool_format: ToolFormat, text: str, content: str, calls: list) -> None:
    assert parse(tool_format, text) == (content, calls)
    for seed in range(10):
        assert parse(tool_format, text, random.Random(seed)) == (content, calls)


def test_formats_are_told_by_the_template() -> None:
    hermes = "{% if tools %}<tool_call>{% endif %}"
    assert format_of(hermes) is HERMES
    assert format_of('{% if tools %}{"name": name, "parameters": {} }{% endif %}') is not HERMES
    assert format_of('{% if tools %}{"name": x, "parameters": d}{% endif %}') is LLAMA3
    for sign, known in SIGNS:
        if isinstance(known, str):
            with pytest.raises(InvalidRequest, match=known.split(" (")[0]):
                format_of(hermes + sign)
    with pytest.raises(InvalidRequest, match="shows none"):
        format_of("{{ messages }}")
    with pytest.raises(InvalidRequest, match="is another"):
        format_of("{{ tools }}")


def test_tools_are_checked() -> None:
    def tool(name: str) -> Tool:
        return Tool(type="function", function=Function(name=name))

    with pytest.raises(InvalidRequest, match=r"tools\[1\]\.function\.name: got 'f'"):
        chosen_tools([tool("f"), tool("f")], "auto")
