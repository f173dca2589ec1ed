"""Write the TypeScript types of the JSON that the page sends and reads, from the pydantic models.

`python -m tools.page_types` writes src/paceline/web/types/api.d.ts; with `--check` it fails where
that file is not what the models say. To add a model (a pydantic model, a dataclass, a TypedDict),
add it to MODELS.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from paceline.autospec.api.answers import (
    AutospecOverview,
    DrafterChange,
    PromotionBody,
    RollbackBody,
)
from paceline.roofline.scenario import Prediction, StatedScenario
from paceline.server.errors import ErrorResponse
from paceline.server.page_answers import (
    HardwareLists,
    LiveSnapshot,
    MeasuredPoints,
    ModelLists,
    PageState,
    RecentRequests,
    ServedScenario,
    ServingFacts,
    TimedRun,
    TrainingRuns,
)
from paceline.server.protocol import ChatRequest
from paceline.server.responses import AnswerChunk, ChatCompletion
from paceline.server.round_bodies import RequestRounds

# "validation" for what the page sends, "serialization" for what it reads. In both, a field with a
# default may be missing.
MODELS: tuple[tuple[type, JsonSchemaMode], ...] = (
    (ChatRequest, "validation"),
    (ChatCompletion, "serialization"),
    (RequestRounds, "serialization"),
    (ErrorResponse, "serialization"),
    (AnswerChunk, "serialization"),
    (StatedScenario, "validation"),
    (Prediction, "serialization"),
    (PageState, "serialization"),
    (ServingFacts, "serialization"),
    (ServedScenario, "serialization"),
    (LiveSnapshot, "serialization"),
    (RecentRequests, "serialization"),
    (ModelLists, "serialization"),
    (HardwareLists, "serialization"),
    (MeasuredPoints, "serialization"),
    (TrainingRuns, "serialization"),
    (TimedRun, "serialization"),
    (AutospecOverview, "serialization"),
    (PromotionBody, "validation"),
    (RollbackBody, "validation"),
    (DrafterChange, "serialization"),
)
FILE = Path(__file__).parent.parent / "src/paceline/web/types/api.d.ts"
COMMAND = "python -m tools.page_types"
HEAD = f"// Written by `{COMMAND}` from the server's pydantic models. Do not edit.\n"
WIDTH = 100
SIMPLE = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}
Schema = Mapping[str, Any]


def declarations(models: Sequence[tuple[type, JsonSchemaMode]] = MODELS) -> str:
    """Return the whole file: a type for each of `models` and for each model inside of them."""
    adapters: list[tuple[type, JsonSchemaMode, TypeAdapter[Any]]]
    adapters = [(model, mode, TypeAdapter(model)) for model, mode in models]
    _, schema = TypeAdapter.json_schemas(adapters)
    parts = [declaration(name, model) for name, model in sorted(schema["$defs"].items())]
    return "\n".join([HEAD, *parts])


def declaration(name: str, schema: Schema) -> str:
    """Return the declaration of one named schema."""
    text = comment(schema.get("description", ""), "")
    name = type_name(name)
    if schema.get("type") == "object" and "properties" in schema:
        return f"{text}export interface {name} {object_type(schema, '')}\n"
    return f"{text}export type {name} = {type_of(schema)};\n"


def type_of(schema: Schema, indent: str = "") -> str:
    """Return a schema as a TypeScript type. Raises ValueError for a schema it does not know."""
    if "$ref" in schema:
        return type_name(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for key, joint in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
        if key in schema:
            return joint.join(dict.fromkeys(type_of(part, indent) for part in schema[key]))
    kind = schema.get("type")
    if kind == "array":
        return array_type(schema, indent)
    if kind == "object":
        return object_type(schema, indent)
    if isinstance(kind, str) and kind in SIMPLE:
        return SIMPLE[kind]
    if kind is None:
        return "unknown"
    raise ValueError(f"no TypeScript type for the schema {schema!r}")


def array_type(schema: Schema, indent: str) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(type_of(item, indent) for item in schema['prefixItems'])}]"
    item = type_of(schema.get("items", {}), indent)
    return f"({item})[]" if " | " in item or " & " in item else f"{item}[]"


def object_type(schema: Schema, indent: str) -> str:
    if "properties" not in schema:
        values = schema.get("additionalProperties", True)
        value = type_of(values, indent) if isinstance(values, Mapping) else "unknown"
        return f"{{ [key: string]: {value} }}"
    return "{\n" + "".join(_properties(schema, indent + "  ")) + indent + "}"


def _properties(schema: Schema, indent: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        mark = "" if name in required else "?"
        text = comment(field.get("description", ""), indent)
        yield f"{text}{indent}{name}{mark}: {type_of(field, indent)};\n"


def comment(text: str, indent: str) -> str:
    """Return `text` as a JSDoc comment; nothing for no text."""
    text = " ".join(text.replace("*/", "*\\/").split())
    if not text:
        return ""
    if len(indent) + len(text) + len("/**  */") <= WIDTH:
        return f"{indent}/** {text} */\n"
    lines = textwrap.wrap(text, WIDTH - len(indent) - len(" * "))
    body = "".join(f"{indent} * {line}\n" for line in lines)
    return f"{indent}/**\n{body}{indent} */\n"


def type_name(name: str) -> str:
    """Return the name of a schema without the characters that TypeScript does not take."""
    return "".join(part for part in name if part.isalnum() or part == "_")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    options = parser.parse_args(arguments)
    text = declarations()
    if not options.check:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text, "utf-8")
    elif not FILE.is_file() or FILE.read_text("utf-8") != text:
        print(f"{FILE} is not what the models say; run `{COMMAND}`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
