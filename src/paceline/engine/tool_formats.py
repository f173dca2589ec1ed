"""Formats of answers: how models of a family write tool calls and mark their reasoning.

The formats are data, and the chat template says which one a model has. A template without tools, or
with calls in a form that is not listed here, gets GENERIC: `tool_prompt` tells the model about it.
"""

from __future__ import annotations

import json
import re
import secrets
import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.engine.grammar_bounds import KINDS

# Keywords that say more about the properties of an object.
OPENING = {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf"}
OPENING |= {"$ref", "if"}
NO_ARGUMENTS = dict[str, object](type="object", properties={}, additionalProperties=False)
SHORT_ID = string.ascii_letters + string.digits


class CallableFunction(Protocol):
    """A function that may be called. `parameters` is a JSON schema; None: it takes no arguments."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, object] | None: ...


def arguments_schema(function: CallableFunction) -> dict[str, object]:
    """Return the JSON schema of a function's arguments, which allows no others: a small model that
    may invent arguments writes more and more of them."""
    if not function.parameters:
        return NO_ARGUMENTS
    schema = {"type": "object", **function.parameters}
    # each part of an `allOf` must let the properties of the others pass
    return schema if '"allOf"' in json.dumps(schema) else closed(schema)


def closed(schema: dict[str, object]) -> dict[str, object]:
    """Return a schema whose objects have only the properties that they name; objects without
    `properties`, or with a keyword of OPENING, stay as they are."""
    made: dict[str, object] = {}
    for key, value in schema.items():
        if KINDS.get(key, "schema") == "schema" and isinstance(value, dict):
            made[key] = closed(value)
        elif KINDS.get(key) == "names" and isinstance(value, dict):
            made[key] = {n: closed(v) if isinstance(v, dict) else v for n, v in value.items()}
        elif key in ("anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            made[key] = [closed(part) if isinstance(part, dict) else part for part in value]
        else:
            made[key] = value
    if "properties" in schema and not OPENING & schema.keys():
        made["additionalProperties"] = False
    return made


@dataclass(frozen=True)
class ValueTags:
    """The texts around one argument that is not written as JSON: `opening` KEY `between` VALUE
    `closing`. Texts stand there as they are, other values as JSON."""

    opening: str
    between: str
    closing: str


@dataclass(frozen=True)
class ToolFormat:
    """The form of an answer with calls: `mark` `lead` CALL (`separator` CALL)* `end`, where CALL is
    `before` NAME `between` ARGUMENTS `after`.

    signs          texts that a chat template has, all of them, if its model writes so
    mark           ends free text: calls follow
    separator      None: an answer holds one call
    tags           how each argument is written; None: the arguments are one JSON object
    optional_mark  calls may begin without the mark; then the whole answer is calls, or none of it
    several        an answer may hold several calls unless the request says otherwise
    short_ids      ids of calls are 9 letters and digits, which the template checks
    """

    name: str
    signs: tuple[str, ...]
    mark: str
    before: str
    between: str
    after: str
    separator: str | None
    lead: str = ""
    end: str = ""
    tags: ValueTags | None = None
    optional_mark: bool = False
    several: bool = True
    short_ids: bool = False

    def new_id(self) -> str:
        """Return the id of a new call."""
        if self.short_ids:
            return "".join(secrets.choice(SHORT_ID) for _ in range(9))
        return f"call_{uuid.uuid4().hex[:24]}"

    def shown_name(self, name: str) -> str:
        """Return a function's name as it stands in a call."""
        return f'"{name}"' if self.before.endswith('"') else name

    def write(self, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
        """Return the text of calls, given as names and arguments. Only for formats with JSON."""
        texts = [
            f"{self.before}{name}{self.between}{json.dumps(arguments, ensure_ascii=False)}"
            f"{self.after}"
            for name, arguments in calls
        ]
        return f"{self.mark}{self.lead}{(self.separator or '').join(texts)}{self.end}"


HERMES = ToolFormat(
    name="Hermes",
    signs=("<tool_call>",),
    mark="<tool_call>",
    before='\n{"name": "',
    between='", "arguments": ',
    after="}\n</tool_call>",
    separator="\n<tool_call>",
)
# A small model that was not trained on tools repeats its call if several are allowed.
GENERIC = replace(HERMES, name="generic", signs=(), several=False)
LLAMA3 = ToolFormat(
    name="Llama 3",
    signs=('"parameters": ',),
    mark="<|python_tag|>",
    before='{"name": "',
    between='", "parameters": ',
    after="}",
    separator="; ",
    optional_mark=True,
)
QWEN_XML = ToolFormat(
    name="Qwen3-Coder",
    signs=("<tool_call>", "<function=", "<parameter="),
    mark="<tool_call>",
    before="\n<function=",
    between=">\n",
    after="</function>\n</tool_call>",
    separator="\n<tool_call>",
    tags=ValueTags("<parameter=", ">\n", "\n</parameter>\n"),
)
MISTRAL_LIST = ToolFormat(
    name="Mistral",
    signs=("[TOOL_CALLS]",),
    mark="[TOOL_CALLS]",
    lead=" [",
    before='{"name": "',
    between='", "arguments": ',
    after="}",
    separator=", ",
    end="]",
    short_ids=True,
)
MISTRAL = ToolFormat(
    name="Mistral since 2025-06",
    signs=("[TOOL_CALLS]", "[ARGS]"),
    mark="[TOOL_CALLS]",
    before="",
    between="[ARGS]",
    after="",
    separator="[TOOL_CALLS]",
    short_ids=True,
)
HARMONY = ToolFormat(
    name="gpt-oss (Harmony)",
    signs=("<|channel|>", "<|message|>"),
    mark="<|channel|>",
    before="commentary to=functions.",
    between=" <|constrain|>json<|message|>",
    after="",
    separator=None,
)
# The first whose signs a template has is its format: those with more signs come first.
FORMATS = (QWEN_XML, MISTRAL, MISTRAL_LIST, HARMONY, HERMES, LLAMA3)
# Signs of forms that are not listed above: their models are told of GENERIC.
OTHER_FORMS = (
    "<｜tool▁calls▁begin｜>",
    "<|tool_calls_section_begin|>",
    "<arg_key>",
    "<invoke name=",
)


def format_of(template: str) -> ToolFormat:
    """Return the format of calls that a chat template teaches, GENERIC where it teaches none."""
    if re.search(r"\btools\b", template) and not any(sign in template for sign in OTHER_FORMS):
        for tool_format in FORMATS:
            if all(sign in template for sign in tool_format.signs):
                return tool_format
    return GENERIC


@dataclass(frozen=True)
class ReasoningFormat:
    """The form of an answer whose model thinks first: `opening` REASONING `closing` `gap` ANSWER.

    header   stands before the text of the final answer; the prompt ends with `start` then
    repeats  the model may think several times
    """

    name: str
    sign: str
    opening: str
    closing: str
    gap: str = ""
    header: str = ""
    start: str = ""
    repeats: bool = False


THINK = ReasoningFormat("think", "</think>", "<think>", "</think>", gap="\n\n")
MISTRAL_THINK = ReasoningFormat("[THINK]", "[/THINK]", "[THINK]", "[/THINK]")
CHANNELS = ReasoningFormat(
    "channels",
    "<|channel|>",
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant",
    header="<|channel|>final<|message|>",
    start="<|start|>assistant",
    repeats=True,
)


def reasoning_of(template: str) -> ReasoningFormat | None:
    """Return how a model marks its reasoning, None where its chat template shows no marks."""
    formats = (CHANNELS, THINK, MISTRAL_THINK)
    return next((form for form in formats if form.sign in template), None)
