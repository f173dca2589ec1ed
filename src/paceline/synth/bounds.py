"""The bounds of an application's answers: a grammar, or calls of its tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from paceline.core import Grammar, InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import Expected, NonEmpty
from paceline.synth.source_spec import YamlDocument

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ToolFunction(Document):
    """A function that may be called; without `parameters` it takes no arguments."""

    name: Annotated[
        str,
        Expected(
            "up to 64 letters, digits, dots, dashes or underscores",
            lambda name: bool(NAME.fullmatch(name)),
        ),
    ]
    description: str | None = None
    parameters: (
        Annotated[
            dict[str, object],
            Expected(
                "a JSON schema of the type object",
                lambda schema: bool(schema.get("type", "object") == "object"),
            ),
        ]
        | None
    ) = None
    strict: bool | None = None


class AppTool(Document):
    """A tool as OpenAI writes it."""

    type: Literal["function"] = "function"
    function: ToolFunction


class GrammarSpec(YamlDocument):
    """A grammar as app.yaml has it: its text in `value`, or in a file."""

    kind: Literal["json", "regex", "lark", "choice"]
    value: object = None
    file: NonEmpty | None = None


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """`grammar` bounds the whole answer. `tools` are as OpenAI writes them, and `functions` are
    theirs; where `required`, an answer is calls and nothing else. `body` asks a server for the
    same."""

    grammar: Grammar | None = None
    tools: tuple[dict[str, object], ...] = ()
    functions: tuple[ToolFunction, ...] = ()
    required: bool = True
    body: Mapping[str, object] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.grammar is not None or bool(self.tools)


def tool_bounds(tools: list[AppTool], choice: str | None) -> AnswerBounds:
    """Return bounds to calls of `tools`. Raises InvalidRequest, naming the field."""
    if not tools:
        raise InvalidRequest("tools", tools, "a list of tools as OpenAI writes them")
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"tools[{index}].function.name", name, "a name of its own")
    written = [tool.model_dump(exclude_unset=True) for tool in tools]
    return AnswerBounds(
        tools=tuple(written),
        functions=tuple(tool.function for tool in tools),
        required=choice != "auto",
        body={"tools": written, "tool_choice": choice or "required"},
    )


def grammar_bounds(spec: GrammarSpec, name: str, folder: Path) -> AnswerBounds:
    """Return bounds to the grammar of the application `name`. Raises InvalidRequest, naming the
    field; compiling the grammar needs the model's tokenizer."""
    if (spec.value is None) == (spec.file is None):
        raise InvalidRequest("grammar.value", spec.value, "either value or file")
    source, where = spec.value, "grammar.value"
    if spec.file is not None:
        source, where = _read_file(folder, spec.file, spec.kind), "grammar.file"
    if spec.kind == "json":
        if not isinstance(source, dict):
            raise InvalidRequest(where, source, "a JSON schema, as a mapping")
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:64]
        schema = {"name": plain, "schema": source, "strict": True}
        body = {"response_format": {"type": "json_schema", "json_schema": schema}}
        return AnswerBounds(Grammar("json_schema", json.dumps(source), where), body=body)
    asked = {"structured_outputs": {spec.kind: source}}
    if spec.kind == "choice":
        texts = source if isinstance(source, list) else []
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise InvalidRequest(where, source, "a list of texts, none of them empty")
        pattern = "|".join(map(re.escape, texts))
        return AnswerBounds(Grammar("regex", pattern, where), body=asked)
    if not isinstance(source, str):
        raise InvalidRequest(where, source, f"the {spec.kind} as a text")
    return AnswerBounds(Grammar(spec.kind, source, where), body=asked)


def _read_file(folder: Path, name: str, kind: str) -> object:
    try:
        text = (folder / name).read_text("utf-8")
        if kind == "json":
            return json.loads(text)
    except (OSError, ValueError) as error:
        expected = f"a readable file with the {kind} ({error})"
        raise InvalidRequest("grammar.file", name, expected) from error
    return text.splitlines() if kind == "choice" else text
