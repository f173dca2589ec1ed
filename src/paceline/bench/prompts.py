"""Prompt sets for the demo and for `paceline bench`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest

EXPECTED = 'objects with "name", "kind" and "messages"'


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A conversation to be answered. `kind` groups prompts that speculation treats alike."""

    name: str
    kind: str
    messages: tuple[dict[str, str], ...]


def shipped() -> list[str]:
    """Names of the prompt sets that come with the package."""
    folder = resources.files("paceline.bench") / "prompts"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".json"))


def load_prompts(name: str) -> list[BenchPrompt]:
    """Read a shipped set by name, or a JSON file: a list of objects with name, kind and messages.

    Raises InvalidRequest (field `prompts`) for an unknown name or a file of another shape.
    """
    if name in shipped():
        text = (resources.files("paceline.bench") / "prompts" / f"{name}.json").read_text("utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text("utf-8")
    else:
        raise InvalidRequest("prompts", name, "a JSON file, or one of " + ", ".join(shipped()))
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest("prompts", name, f"a JSON list ({error})") from error
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest("prompts", name, f"a non-empty JSON list of {EXPECTED}")
    return [_prompt(name, row) for row in rows]


def _prompt(source: str, row: Any) -> BenchPrompt:
    if not isinstance(row, dict) or set(row) != {"name", "kind", "messages"}:
        raise InvalidRequest("prompts", source, EXPECTED)
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("prompts", source, "a non-empty list as messages")
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise InvalidRequest("prompts", source, 'messages with "role" and "content"')
    return BenchPrompt(str(row["name"]), str(row["kind"]), tuple(messages))
