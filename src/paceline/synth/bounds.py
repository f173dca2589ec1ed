"""Read what an application's answers are bound to: a grammar, or calls of its tools."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core import Grammar, InvalidRequest
from paceline.dataset.fields import Fields

GRAMMAR_FIELDS = ("grammar", "tools", "tool_choice")
KINDS = ("json", "regex", "lark", "choice")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that may be called. `parameters` is a JSON schema; None: no arguments."""

    name: str
    parameters: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """`grammar` bounds the whole answer. `tools` are as OpenAI writes them, `functions` the same
    read; where `required`, an answer is calls and nothing else."""

    grammar: Grammar | None = None
    kind: str = ""
    choices: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    functions: tuple[ToolSpec, ...] = ()
    required: bool = True

    def __bool__(self) -> bool:
        return self.grammar is not None or bool(self.tools)


def read_bounds(fields: Fields, folder: Path) -> Bounds:
    """Raises InvalidRequest, naming the field; whether it compiles needs the model's tokenizer."""
    if "grammar" in fields and "tools" in fields:
        raise fields.refuse("grammar", "nothing beside tools, whose calls have a grammar already")
    if "tools" in fields:
        tools = fields.any("tools")
        if not isinstance(tools, list) or not tools:
            raise fields.refuse("tools", "a list of tools as OpenAI writes them")
        functions = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
        names = [function.name for function in functions]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequest(f"tools[{index}].function.name", name, "a name of its own")
        choice = fields.choice("tool_choice", ("required", "auto"), "required")
        return Bounds(tools=tuple(tools), functions=functions, required=choice == "required")
    if "tool_choice" in fields:
        raise fields.refuse("tool_choice", "tools beside it")
    return _grammar(fields.any("grammar"), folder) if "grammar" in fields else Bounds()


def _tool(value: Any, where: str) -> ToolSpec:
    tool = Fields(value, where, ("type", "function"))
    tool.choice("type", ("function",), "function")
    known = ("name", "description", "parameters", "strict")
    function = Fields(tool.any("function"), f"{where}.function", known)
    name, parameters = function.text("name"), function.any("parameters", None)
    if not NAME.fullmatch(name):
        raise function.refuse("name", "up to 64 letters, digits, dots, dashes or underscores")
    wrong = parameters is not None and not isinstance(parameters, dict)
    if wrong or (parameters or {}).get("type", "object") != "object":
        raise function.refuse("parameters", "a JSON schema of the type object")
    return ToolSpec(name, parameters)


def _grammar(value: Any, folder: Path) -> Bounds:
    fields = Fields(value, "grammar", ("kind", "value", "file"))
    kind = fields.choice("kind", KINDS)
    if ("value" in fields) == ("file" in fields):
        raise fields.refuse("value", "either value or file")
    source = fields.any("value") if "value" in fields else _file(fields, folder, kind)
    where = fields.named("value" if "value" in fields else "file")
    if kind == "json":
        if not isinstance(source, dict):
            raise InvalidRequest(where, source, "a JSON schema, as a mapping")
        return Bounds(Grammar("json_schema", json.dumps(source), where), kind)
    if kind == "choice":
        right = isinstance(source, list) and source
        if not right or not all(isinstance(text, str) and text for text in source):
            raise InvalidRequest(where, source, "a list of texts, none of them empty")
        pattern = "|".join(map(re.escape, source))
        return Bounds(Grammar("regex", pattern, where), kind, tuple(source))
    if not isinstance(source, str):
        raise InvalidRequest(where, source, f"the {kind} as a text")
    return Bounds(Grammar(kind, source, where), kind)


def _file(fields: Fields, folder: Path, kind: str) -> Any:
    path = folder / fields.text("file")
    try:
        text = path.read_text("utf-8")
        if kind == "json":
            return json.loads(text)
    except (OSError, ValueError) as error:
        raise fields.refuse("file", f"a readable file with the {kind} ({error})") from error
    return text.splitlines() if kind == "choice" else text
