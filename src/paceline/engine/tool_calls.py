"""Tool calls: how models of a family write them, and the grammar of answers that hold some."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.core import Grammar, InvalidRequest
from paceline.engine.grammar import embedded

NO_ARGUMENTS = dict[str, object](type="object", properties={}, additionalProperties=False)


class CallableFunction(Protocol):
    """A function that may be called. `parameters` is a JSON schema; None: it takes no arguments."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, object] | None: ...


@dataclass(frozen=True)
class ToolFormat:
    """The form in which a call is written: `opening`, {"name": …, `arguments`: …}, `closing`.

    `sign` is a text in the chat templates of models that write so. A call may begin without its
    opening where `optional_opening` says so; the whole answer is calls then, or none.
    """

    name: str
    sign: str
    opening: str
    arguments: str
    closing: str
    separator: str
    optional_opening: bool = False

    def head(self, name: str) -> list[str]:
        """What stands before the arguments, in the pieces that a JSON grammar has too: the lexer
        takes the longest of all that may come, so `{"name"` as one would hide `{` from others."""
        return ["{", '"name"', ": ", json.dumps(name), ", ", f'"{self.arguments}"', ": "]


HERMES = ToolFormat(
    name="Hermes",
    sign="<tool_call>",
    opening="<tool_call>\n",
    arguments="arguments",
    closing="\n</tool_call>",
    separator="\n",
)
LLAMA3 = ToolFormat(
    name="Llama 3",
    sign='"parameters": ',
    opening="<|python_tag|>",
    arguments="parameters",
    closing="",
    separator="; ",
    optional_opening=True,
)
# Looked for in this order; what is named here only is refused by that name.
SIGNS: tuple[tuple[str, ToolFormat | str], ...] = (
    ("<function=", "Qwen3-Coder's XML"),
    ("[TOOL_CALLS]", "Mistral"),
    ("<｜tool▁calls▁begin｜>", "DeepSeek"),
    ("<|tool_calls_section_begin|>", "Kimi"),
    ("<|channel|>", "gpt-oss (Harmony)"),
    ("<arg_key>", "GLM"),
    ("<minimax:tool_call>", "MiniMax"),
    (HERMES.sign, HERMES),
    (LLAMA3.sign, LLAMA3),
)


def format_of(template: str) -> ToolFormat:
    """The format that a chat template teaches. Raises InvalidRequest naming one that is not known,
    or that the template shows no tools at all."""
    known = "a model whose chat template has tools in the format of Hermes and Qwen, or of Llama 3"
    if re.search(r"\btools\b", template) is None:
        raise InvalidRequest("tools", "tools", f"{known}; this one's template shows none")
    for sign, tool_format in SIGNS:
        if sign in template:
            if isinstance(tool_format, ToolFormat):
                return tool_format
            raise InvalidRequest("tools", "tools", f"{known}; this one's is {tool_format}")
    raise InvalidRequest("tools", "tools", f"{known}; this one's is another")


def calls_grammar(
    tool_format: ToolFormat,
    tools: Sequence[CallableFunction],
    *,
    required: bool,
    several: bool,
    final: Grammar | None,
    is_token: Callable[[str], bool],
) -> Grammar:
    """Answers that call `tools`, or, unless that is `required`, say something: `final` bounds what.

    `several` allows more than one call. `is_token` tells whether a text is one token of the
    vocabulary, which text alone cannot spell.
    """
    more = f"({_text(tool_format.separator)} call)*" if several else ""
    calls = f"call {more}"
    rules = [_call(tool_format, is_token)]
    if required:
        start = calls
    elif final is not None:
        start = f"{calls} | %json {embedded(json.loads(final.source))}"
    else:
        start, rule = _free_text(tool_format, calls, is_token)
        rules.append(rule)
    bodies = [
        f"{' '.join(map(_text, tool_format.head(function.name)))} "
        f'%json {embedded(arguments_schema(function))} "}}"'
        for function in tools
    ]
    lark = "\n".join(["%llguidance {}", f"start: {start}", *rules, "body: " + " | ".join(bodies)])
    return Grammar("lark", lark, "tools")


def arguments_schema(function: CallableFunction) -> dict[str, object]:
    return {"type": "object", **function.parameters} if function.parameters else NO_ARGUMENTS


def _call(tool_format: ToolFormat, is_token: Callable[[str], bool]) -> str:
    opening = _literal(tool_format.opening, is_token)
    if tool_format.optional_opening:
        return f"call: ({opening})? body"
    return f"call: {opening} body {_literal(tool_format.closing, is_token)}"


def _free_text(
    tool_format: ToolFormat, calls: str, is_token: Callable[[str], bool]
) -> tuple[str, str]:
    """Any text, which the opening of a call ends; a token cannot be part of a text."""
    if tool_format.optional_opening:
        return f"{calls} | TEXT", r"TEXT: /([^{](.|\n)*)?/"
    if is_token(tool_format.opening.strip()):
        return f"TEXT ({calls})?", r"TEXT: /(.|\n)*/"
    sign = _text(tool_format.opening)
    rest = calls.replace("call", "rest", 1)
    closing = _literal(tool_format.closing, is_token)
    lines = [r"TEXT: /(.|\n)*/", f"talk[lazy]: TEXT {sign}", f"rest: body {closing}"]
    return f"talk {rest} | TEXT", "\n".join(lines)


def _literal(text: str, is_token: Callable[[str], bool]) -> str:
    """A text as Lark has it, where a part of it is a token of its own."""
    stripped = text.strip()
    if not is_token(stripped):
        return _text(text)
    before, after = text.split(stripped)
    return " ".join(part for part in (_text(before), stripped, _text(after)) if part)


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
