"""Tools: the grammar of calls, and the parser that finds them in a stream of text."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from paceline.core import Grammar, InvalidRequest
from paceline.engine.grammar import Compiler, GrammarState
from paceline.engine.tool_calls import Calls, Thinking, answer_grammar
from paceline.engine.tool_formats import (
    CHANNELS,
    FORMATS,
    GENERIC,
    HARMONY,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_LIST,
    MISTRAL_THINK,
    QWEN_XML,
    THINK,
    ReasoningFormat,
    ToolFormat,
    arguments_schema,
    format_of,
    reasoning_of,
)
from paceline.engine.tool_values import properties
from paceline.server.parsing import AnswerFormat
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
NOTE = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 9},
        "kind": {"type": "string", "enum": ["a b", "<c>"]},
        "maybe": {"type": ["string", "null"], "maxLength": 3},
        "level": {"$ref": "#/$defs/level"},
        "code": {"type": "string", "pattern": "^[0-9]{2}$"},
    },
    "$defs": {"level": {"enum": [1, "two"]}},
    "required": ["text"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "note": NOTE, "stop.now": {"maxProperties": 0}}
FUNCTIONS = [
    Function(name="get_weather", parameters=WEATHER),
    Function(name="note", parameters=NOTE),
    Function(name="stop.now"),
]
EVERY = pytest.mark.parametrize("tool_format", FORMATS, ids=lambda f: f.name)


def tokenizer(*added: str) -> Any:
    made = copy.deepcopy(byte_tokenizer())
    made.add_tokens(list(added), special_tokens=False)
    return made


TOKENIZERS = {
    "text": tokenizer(),
    "tokens": tokenizer(
        "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[THINK]",
        "[/THINK]", "<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
        "<|constrain|>",
    ),
}  # fmt: skip


COMPILERS: dict[int, Compiler] = {}


@pytest.fixture(scope="module", autouse=True)
def no_child_stays() -> Iterator[None]:
    yield
    for compiler in COMPILERS.values():
        compiler.close()


def reasoning_with(tool_format: ToolFormat) -> ReasoningFormat:
    special = {HARMONY: CHANNELS, MISTRAL: MISTRAL_THINK}
    return special.get(tool_format, THINK)


def reads(tool_format: ToolFormat, thinking: Thinking = Thinking.DONE) -> AnswerFormat:
    """The format of answers with the calls of `tool_format`; gpt-oss's always has channels."""
    arguments = {}
    if tool_format.tags is not None:
        arguments = {name: properties(schema, name) for name, schema in TAGGED.items()}
    reasoning = None
    if thinking is not Thinking.DONE or tool_format is HARMONY:
        reasoning = reasoning_with(tool_format)
    if tool_format is HARMONY:
        thinking = Thinking.MAYBE
    return AnswerFormat(tool_format, reasoning, thinking, arguments)


TAGGED = {"get_weather": WEATHER, "note": NOTE}


def grammar(tool_format: ToolFormat, words: Any, **wishes: Any) -> Grammar:
    options = {"required": False, "several": True, "final": None, **wishes}
    calls = Calls(tool_format, FUNCTIONS, options["required"], options["several"])
    thinking = options.get("thinking", Thinking.DONE)
    form = reads(tool_format, thinking)
    final, added = options["final"], words.get_added_vocab()
    return answer_grammar(calls, final, added, form.reasoning, form.thinking)


def say(words: Any, bound: Grammar, seed: int, most: int = 400) -> tuple[str, bool]:
    """A text drawn from what is allowed, and whether it came to its end. Ends and closing tags come
    more often than an even draw would give them."""
    end = words.eos_token_id
    if id(words) not in COMPILERS:
        COMPILERS[id(words)] = Compiler(words, len(words), {end})
    state = GrammarState(COMPILERS[id(words)].compile(bound), end)
    rng, said = random.Random(seed), []
    mask = np.zeros((1, -(-len(words) // 32)), dtype=np.uint32)
    while len(said) < most:
        state.fill(mask, [])
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        added = [token for token in allowed if token >= 256]
        token = int(rng.choice(added if added and rng.random() < 0.3 else allowed))
        if token == end:
            return words.decode(said), True
        state.advance(token)
        said.append(token)
    return words.decode(said), False


def parse(
    form: AnswerFormat, text: str, rng: random.Random | None = None
) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and calls, the text fed in pieces of random lengths; what is streamed must
    add up."""
    parser, pieces, at = form.parser(), [], 0
    while at < len(text) or not text:
        size = rng.randrange(1, 6) if rng else len(text)
        pieces += parser.feed(text[at : at + size], last=at + size >= len(text))
        at += size
        if not text:
            break
    streamed: dict[int, str] = {}
    for piece in pieces:
        if piece.index >= 0:
            assert piece.begins == (piece.index not in streamed)
            streamed[piece.index] = streamed.get(piece.index, "") + piece.arguments
    assert [streamed[i] for i in range(len(parser.calls))] == [c.arguments for c in parser.calls]
    calls = [(c.name, c.arguments) for c in parser.calls]
    return "".join(p.reasoning for p in pieces), "".join(p.content for p in pieces), calls


@pytest.mark.parametrize("kind", TOKENIZERS)
@EVERY
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_whatever_is_said_has_calls_that_validate(
    tool_format: ToolFormat, kind: str, choice: str
) -> None:
    words, called, form = TOKENIZERS[kind], 0, reads(tool_format)
    bound = grammar(tool_format, words, required=choice == "required")
    for seed in range(20):
        text, ended = say(words, bound, seed)
        reasoning, content, calls = parse(form, text)
        assert parse(form, text, random.Random(seed)) == (reasoning, content, calls)
        for name, arguments in calls if ended else calls[:-1]:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        called += len(calls)
        if choice == "required":
            assert not ended or (calls and not content)
    assert called or choice == "auto"


@EVERY
def test_one_call_where_several_are_not_wanted(tool_format: ToolFormat) -> None:
    words = TOKENIZERS["tokens"]
    bound = grammar(tool_format, words, required=True, several=False)
    ends = 0
    for seed in range(8):
        text, ended = say(words, bound, seed)
        ends += ended
        assert len(parse(reads(tool_format), text)[2]) == 1
    assert ends


@EVERY
def test_calls_or_a_final_answer(tool_format: ToolFormat) -> None:
    words = TOKENIZERS["text"]
    final = {
        "type": "object",
        "properties": {"ok": {"enum": [1, 2]}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    bound = grammar(tool_format, words, final=schema_grammar(final, "response_format"))
    both = set()
    for seed in range(20):
        text, ended = say(words, bound, seed)
        _, content, calls = parse(reads(tool_format), text)
        if ended:
            assert bool(content) != bool(calls)
        if content and ended:
            jsonschema.validate(json.loads(content), final)
        both.add(bool(calls))
    assert both == {True, False}


@pytest.mark.parametrize("thinking", [Thinking.OPEN, Thinking.MAYBE])
@EVERY
def test_bounds_hold_behind_the_reasoning(tool_format: ToolFormat, thinking: Thinking) -> None:
    words, thought = TOKENIZERS["tokens"], 0
    form = reads(tool_format, thinking)
    bound = grammar(tool_format, words, required=True, several=False, thinking=thinking)
    for seed in range(10):
        text, ended = say(words, bound, seed)
        reasoning, content, calls = parse(form, text)
        assert parse(form, text, random.Random(seed)) == (reasoning, content, calls)
        assert not content and (len(calls) == 1 or not ended)
        for name, arguments in calls if ended else ():
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        thought += bool(reasoning)
    assert thought


@EVERY
def test_broken_answers_lose_no_content_and_raise_nothing(tool_format: ToolFormat) -> None:
    """Answers cut and garbled at every place: a parser sees what no grammar has bound."""
    marks = [tool_format.mark, tool_format.before, tool_format.between, tool_format.after, '{"a":']
    marks += [tool_format.separator or "", "<think>", "</think>", "<|message|>", "f", "}", "x y\n"]
    for seed in range(150):
        rng = random.Random(seed)
        text = "".join(rng.choice(marks) for _ in range(rng.randrange(12)))
        form = reads(tool_format, rng.choice(list(Thinking)))
        assert parse(form, text) == parse(form, text, rng)


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}\\"{"}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=note>\n<parameter=text>\n {}\n\n</parameter>\n</function>\n</tool_call>"
)
LONG = f"{XML}\n<tool_call>\n<function=stop.now>\n</function>\n</tool_call>"
TO_F = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
HM = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
SAID = [
    (HERMES, "Hi", "Hi", []),
    (HERMES, "Hi <tool_cal", "Hi <tool_cal", []),
    (HERMES, "", "", []),
    (HERMES, "  ", "  ", []),
    (HERMES, f'Well.\n{CALL}\n<tool_call>\n{{"name": "g", "arguments": {{}}}}\n</tool_call>',
     "Well.", [("f", '{"a": "}\\"{"}'), ("g", "{}")]),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": [1', "", [("f", '{"a": [1')]),
    (HERMES, '<tool_call>{"name":"f","arguments":{}}</tool_call> Bye', "Bye", [("f", "{}")]),
    (HERMES, "<tool_call>\n{oh", "<tool_call>\n{oh", []),
    (LLAMA3, '{"name": "f", "parameters": {"a": {}}}', "", [("f", '{"a": {}}')]),
    (LLAMA3, '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "",
     [("f", "{}"), ("g", "{}")]),
    (LLAMA3, "No { here", "No { here", []),
    (LLAMA3, '{"answer": 5}', '{"answer": 5}', []),
    (LLAMA3, "<|python", "<|python", []),
    (QWEN_XML, f"So:\n{LONG}", "So:", [("note", '{"text": " {}\\n"}'), ("stop.now", "{}")]),
    (QWEN_XML, "<tool_call>\n<function=get_weather>\n<parameter=city>\n\"Köln\"\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n<parameter=oops>\n[1\n</parameter>\n</function>", "",
     [("get_weather", '{"city": "Köln", "days": 3, "oops": "[1"}')]),
    (QWEN_XML, XML[:60], "", [("note", "")]),
    (QWEN_XML, XML.format("<a></parameter></a>"), "",
     [("note", '{"text": " <a></parameter></a>\\n"}')]),
    (QWEN_XML, XML.format("").replace("text", "level").replace(" \n\n", '\n"</parameter>"\n'), "",
     [("note", '{"level": "</parameter>"}')]),
    (QWEN_XML, XML.partition("</parameter>")[0] + "</parameter>", "",
     [("note", '{"text": " {}\\n"')]),
    (MISTRAL_LIST, 'A[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
     "A", [("f", "{}"), ("g", "{}")]),
    (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "",
     [("f", '{"a": 1}'), ("g", "{}")]),
    (HARMONY, f"{HM}{TO_F}", "", [("f", "{}")]),
    (HARMONY, " to=functions.f<|channel|>commentary json<|message|>{}", "", [("f", "{}")]),
    (HARMONY, f"{HM}<|channel|>final<|message|>Hi <|en", "Hi <|en", []),
    (HARMONY, f"<|channel|>commentary<|message|>First.<|end|><|start|>assistant{TO_F}", "First.",
     [("f", "{}")]),
    (HARMONY, "no header", "no header", []),
    (HARMONY, "<|channel|>fi", "", []),
    (HARMONY, f"{HM}<|channel|>fi", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), SAID)
def test_parser(tool_format: ToolFormat, text: str, content: str, calls: list) -> None:
    _, said, made = parse(reads(tool_format), text)
    assert said == content
    assert [(name, arguments) for name, arguments in made] == calls
    for seed in range(10):
        assert parse(reads(tool_format), text, random.Random(seed))[1:] == (content, calls)


THOUGHT = [
    (THINK, Thinking.OPEN, "\nHm.\n</think>\n\nSo.", "Hm.", "So."),
    (THINK, Thinking.OPEN, "Hm", "Hm", ""),
    (THINK, Thinking.MAYBE, "<think>\n\n</think>\n\nSo.", "", "So."),
    (THINK, Thinking.MAYBE, " <think>Hm</thin", "Hm</thin", ""),
    (THINK, Thinking.MAYBE, "So <think>", "", "So <think>"),
    (THINK, Thinking.DONE, "So.", "", "So."),
    (MISTRAL_THINK, Thinking.MAYBE, "[THINK]Hm[/THINK]So", "Hm", "So"),
    (CHANNELS, Thinking.MAYBE, f"{HM}<|channel|>final<|message|>So.", "Hm.", "So."),
    (CHANNELS, Thinking.DONE, "and so.", "", "and so."),
]


@pytest.mark.parametrize(("reasoning", "thinking", "text", "thought", "content"), THOUGHT)
def test_reasoning(
    reasoning: ReasoningFormat, thinking: Thinking, text: str, thought: str, content: str
) -> None:
    form = AnswerFormat(None, reasoning, thinking)
    for seed in range(10):
        assert parse(form, text, random.Random(seed)) == (thought, content, [])
    whole = form.parse(text)
    assert (whole.reasoning, whole.content, whole.calls) == (thought, content, [])


def test_formats_are_told_by_the_template() -> None:
    tools = "{% if tools %}"
    for tool_format in FORMATS:
        assert format_of(tools + "".join(tool_format.signs)) is tool_format
    for template in ("{{ messages }}", tools, "<tool_call>", tools + "<tool_call><arg_key>"):
        assert format_of(template) is GENERIC
    assert reasoning_of("{{ content.split('</think>')[-1] }}") is THINK
    assert reasoning_of(tools + "<|channel|>analysis") is CHANNELS
    assert reasoning_of("{{ messages }}") is None


def test_ids_of_calls_are_such_as_the_template_takes() -> None:
    for tool_format in FORMATS:
        call = "[A-Za-z0-9]{9}" if tool_format.mark == "[TOOL_CALLS]" else "call_[0-9a-f]{24}"
        assert re.fullmatch(call, tool_format.new_id())
        assert tool_format.new_id() != tool_format.new_id()


def test_what_tags_cannot_write_is_refused() -> None:
    for part, place in (({"anyOf": []}, "anyOf"), ({"properties": {"a>b": {}}}, "properties")):
        schema = {"type": "object", **part}
        with pytest.raises(
            InvalidRequest, match=rf"^tools\[0\]\.function\.parameters\.{place}: got"
        ):
            properties(schema, "tools[0].function.parameters")


def test_arguments_are_those_that_the_parameters_name() -> None:
    part = {"type": "object", "properties": {"a": {}}}
    function = Function(name="f", parameters={"properties": {"b": part, "c": {"anyOf": [part]}}})
    schema = arguments_schema(function)
    for value, fits in (
        ({"b": {"a": 1}, "c": {"a": 1}}, True),
        ({"x": 1}, False),
        ({"b": {"x": 1}}, False),
        ({"c": {"x": 1}}, False),
    ):
        assert jsonschema.Draft202012Validator(schema).is_valid(value) == fits
    for open_schema in (
        {"properties": {}, "additionalProperties": True},
        {"properties": {"a": {}}, "allOf": [part]},
        {"type": "object", "$ref": "#/$defs/x", "$defs": {"x": part}, "properties": {}},
    ):
        made = arguments_schema(Function(name="f", parameters=open_schema))
        assert made.get("additionalProperties") is not False


def test_tools_are_checked() -> None:
    def tool(name: str) -> Tool:
        return Tool(type="function", function=Function(name=name))

    with pytest.raises(InvalidRequest, match=r"tools\[1\]\.function\.name: got 'f'"):
        chosen_tools([tool("f"), tool("f")], "auto")
