"""The grammar of an answer: reasoning, then calls of tools, or free text, or a form of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from paceline.core import Grammar
from paceline.engine.grammar import embedded
from paceline.engine.tool_formats import (
    CallableFunction,
    ReasoningFormat,
    ToolFormat,
    ValueTags,
    arguments_schema,
)
from paceline.engine.tool_values import is_plain, plain_choices, properties

# JSON's own pieces: the lexer takes the longest of all that may come, so that `{"name"` as one
# text would hide the `{` of other alternatives.
PIECES = re.compile(r'"[^"]*"|[{}\[\]]|[,:] |[^"{}\[\],:]+|.', re.DOTALL)
ANY_TEXT = r"/(.|\n)*/"


class Thinking(StrEnum):
    """The place where the prompt leaves the model's reasoning."""

    OPEN = "open"  # the prompt ends within the reasoning
    MAYBE = "maybe"  # the answer may begin with it
    DONE = "done"  # the prompt holds all of it


@dataclass(frozen=True)
class Calls:
    """The functions that an answer may call.

    required  the answer is calls, without other text
    several   the answer may hold more than one call
    """

    format: ToolFormat
    functions: Sequence[CallableFunction]
    required: bool
    several: bool


def answer_grammar(
    calls: Calls | None,
    final: Grammar | None,
    added: Mapping[str, int],
    reasoning: ReasoningFormat | None = None,
    thinking: Thinking = Thinking.DONE,
) -> Grammar:
    """Return the grammar of an answer that calls tools, or else is bound by `final`, or is free.

    Reasoning that comes before is free. `added` are the ids of the vocabulary's added tokens, which
    no text can spell. Raises InvalidRequest for parameters that the format of the calls cannot
    write.
    """
    lark = _Lark(added)
    begins = reasoning is not None and thinking is not Thinking.DONE
    header = lark.literal(reasoning.header) if reasoning is not None and begins else ""
    if calls is None:
        assert final is not None, "an answer without tools and bounds needs no grammar"
        start = f"{header} {lark.nested(final)}"
    else:
        start = lark.answer(calls, final, header)
    if reasoning is not None and begins:
        start = f"{lark.reasoning(reasoning, thinking)} ({start})"
    source = "\n".join(["%llguidance {}", f"start: {start}", *lark.rules])
    return Grammar("lark", source, "tools" if calls else final.field if final else "grammar")


class _Lark:
    """Writes one Lark grammar; `rules` are those beside the start."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added, self.rules = added, list[str]()
        longest_first = sorted(added, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def literal(self, text: str, *, pieces: bool = False) -> str:
        """Return a text as Lark writes it, tokens in it by their ids."""
        written, at = list[str](), 0
        for token in self._tokens.finditer(text):
            written += [*self._texts(text[at : token.start()], pieces), self._token(token[0])]
            at = token.end()
        return " ".join([*written, *self._texts(text[at:], pieces)])

    def nested(self, grammar: Grammar) -> str:
        """Return a user's grammar as a part of this one."""
        if grammar.kind == "json_schema":
            return f"%json {embedded(json.loads(grammar.source))}"
        if grammar.kind == "lark":
            return f"%lark {{\n{grammar.source}\n}}"
        return f"/{_slashed(grammar.source)}/"

    def reasoning(self, form: ReasoningFormat, thinking: Thinking) -> str:
        """Return the part before the answer, up to the gap behind the reasoning."""
        thought = f"{self._free('THOUGHT', form.closing)} {self.literal(form.gap)}"
        again = f"({self.literal(form.opening)} {thought}){'*' if form.repeats else '?'}"
        if thinking is Thinking.MAYBE:
            return again
        return f"{thought} {again if form.repeats else ''}"

    def answer(self, calls: Calls, final: Grammar | None, header: str) -> str:
        """Return the answer itself: calls, or what `final` bounds, or any text."""
        form = calls.format
        more = ""
        if calls.several and form.separator is not None:
            more = f"({self.literal(form.separator, pieces=True)} call)*"
        bodies = [self._call(form, function) for function in calls.functions]
        self.rules.append("call: " + " | ".join(bodies))
        rest = f"{self.literal(form.lead, pieces=True)} call {more} {self.literal(form.end)}"
        mark = self.literal(form.mark)
        marked = f"({mark})? {rest}" if form.optional_mark else f"{mark} {rest}"
        if calls.required:
            return marked
        if final is not None:
            return f"{marked} | {header} {self.nested(final)}"
        if form.optional_mark:
            self._rule(r"TEXT: /([^{](.|\n)*)?/")
            return f"{marked} | {header} TEXT"
        self._rule(f"TEXT: {ANY_TEXT}")
        if header:
            return f"{marked} | {header} TEXT"
        if form.mark in self._added:
            return f"TEXT ({marked})?"
        return f"{self._free('TEXT', form.mark)} {rest} | TEXT"

    def _call(self, form: ToolFormat, function: CallableFunction) -> str:
        head = self.literal(f"{form.before}{function.name}{form.between}", pieces=True)
        schema = arguments_schema(function)
        if form.tags is None:
            arguments = f"%json {embedded(schema)}"
        else:
            arguments = self._tagged(form.tags, function.name, schema)
        return f"{head} {arguments} {self.literal(form.after, pieces=True)}"

    def _tagged(self, tags: ValueTags, name: str, schema: Mapping[str, object]) -> str:
        """Return arguments between tags, in the order of their schema."""
        required = schema.get("required") or ()
        parts = []
        for key, part in properties(schema, f"tools.{name}.parameters").items():
            value = self._value(part, tags.closing)
            text = f"{self.literal(tags.opening + key + tags.between)} {value}"
            is_required = isinstance(required, Sequence) and key in required
            parts.append(text if is_required else f"({text})?")
        return " ".join(parts)

    def _value(self, schema: Mapping[str, object], closing: str) -> str:
        end = self.literal(closing)
        if not is_plain(schema):
            return f"%json {embedded(dict(schema))} {end}"
        choices = plain_choices(schema)
        if choices is not None:
            texts = [self.literal(str(text)) for text in choices]
            return f"({' | '.join(texts)}) {end}"
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        count = "*" if not least and most == "" else f"{{{least},{most}}}"
        rule = f"value_{least}_{most}"
        self._rule(f"{rule.upper()}: /(.|\n){count}/")
        self._rule(f"{rule}[lazy]: {rule.upper()} {end}")
        return rule

    def _free(self, name: str, end: str) -> str:
        """Return any text up to `end`; a token cannot be part of a text."""
        self._rule(f"{name}: {ANY_TEXT}")
        if self._tokens.match(end):
            return f"{name} {self.literal(end)}"
        self._rule(f"{name.lower()}_end[lazy]: {name} {self.literal(end)}")
        return f"{name.lower()}_end"

    def _rule(self, rule: str) -> None:
        if rule not in self.rules:
            self.rules.append(rule)

    def _token(self, text: str) -> str:
        return f"<[{self._added[text]}]>"

    def _texts(self, text: str, pieces: bool) -> list[str]:
        parts = PIECES.findall(text) if pieces else [text] * bool(text)
        return [json.dumps(part) for part in parts]


def _slashed(expression: str) -> str:
    """Return a regular expression as Lark writes it between slashes."""
    escaped = re.sub(r"(\\.)|/", lambda part: part[1] or r"\/", expression, flags=re.DOTALL)
    return escaped.replace("\n", r"\n")
