"""Prompt sets for the demo and for `paceline bench`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from paceline.core import InvalidRequest
from paceline.core.field_types import Expected

Message = Annotated[
    dict[str, str],
    Expected(
        'messages with "role" and "content", both texts',
        lambda message: message.keys() == {"role", "content"},
    ),
]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A conversation to be answered. `kind` groups prompts that speculation treats alike."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    name: str
    kind: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]


def shipped() -> list[str]:
    """Return the names of the prompt sets that come with the package."""
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
        return TypeAdapter(Annotated[list[BenchPrompt], Field(min_length=1)]).validate_json(text)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = "".join(f"{step}." for step in wrong["loc"]).rstrip(".")
        reason = f"{where}: {wrong['msg']}" if where else wrong["msg"]
        expected = f'a non-empty JSON list of objects with "name", "kind" and "messages" ({reason})'
        raise InvalidRequest("prompts", name, expected) from error
