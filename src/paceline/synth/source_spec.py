"""One prompt source as app.yaml describes it."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.fields import Fields
from paceline.dataset.training_set import PARTS

COMMON = (
    "name", "kind", "part", "weight", "count", "samples", "language", "licence", "system",
    "template", "length", "user_data",
)  # fmt: skip
OWN = {
    "jsonl": ("path", "field"),
    "text": ("path", "unit"),
    "package": ("package", "files", "field", "format"),
    "phrases": ("path",),
    "self": ("starts", "temperature", "max_tokens"),
}
FORMATS = ("json", "jsonl", "yaml", "csv")
UNITS = ("paragraph", "function")


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """Where prompts come from, and what becomes of them.

    kind        jsonl, text, package, phrases, or self: the target writes the user's turn itself
    part        on_task, replay, or neighbour, which is never trained on
    weight      share among the sources of its part
    count       most prompts that are taken; None: all, and of `self` as many as are needed
    samples     how often each prompt is answered, each time with another seed
    own_system  answered with the application's system prompt, template and grammar
    template    put around each prompt, inside the application's own template
    length      shortest and longest prompt, in characters
    field       the way to the prompts in a record: names and places, `*` for each
    unit        what a text is cut into
    starts      of `self`: beginnings of the user's turn, which the target goes on from
    """

    name: str
    kind: str
    part: str
    weight: float
    count: int | None
    samples: int
    language: str
    licence: str
    own_system: bool
    template: str
    length: tuple[int, int]
    user_data: bool
    where: str
    folder: Path
    paths: tuple[str, ...] = ()
    field: tuple[str, ...] = ()
    package: str = ""
    format: str = "jsonl"
    unit: str = "paragraph"
    starts: tuple[str, ...] = ("",)
    temperature: float = 1.0
    max_tokens: int = 128


def read_source(value: Any, where: str, folder: Path) -> SourceSpec:
    """Raises InvalidRequest, naming the field. Nothing is read yet but the description."""
    kind = _kind(value, where)
    fields = Fields(value, where, COMMON + OWN[kind])
    name = fields.text("name")
    if "#" in name:
        raise fields.refuse("name", "a name without #, which stands before a prompt's number")
    part = fields.choice("part", PARTS, "on_task")
    system = fields.choice("system", ("own", "none"), "own" if part == "on_task" else "none")
    samples = fields.integer("samples", 1)
    if kind == "self" and samples > 1:
        raise fields.refuse("samples", "1: the target writes as many prompts as are needed")
    return SourceSpec(
        name=name,
        kind=kind,
        part=part,
        weight=fields.number("weight", 1.0, low=1e-6),
        count=fields.integer("count", None),
        samples=samples,
        language=fields.text("language", "en"),
        licence=fields.text("licence", ""),
        own_system=system == "own",
        template=fields.template("template"),
        length=_length(fields, (200, 1200) if kind == "text" else (1, 8000)),
        user_data=fields.flag("user_data", False),
        where=where,
        folder=folder,
        **_own(fields, kind),
    )


def _kind(value: Any, where: str) -> str:
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in OWN:
        name = f"{where}.kind" if isinstance(value, dict) else where
        raise InvalidRequest(name, kind or value, "a source of the kind " + ", ".join(OWN))
    return str(kind)


def _own(fields: Fields, kind: str) -> dict[str, Any]:
    """What only sources of this kind have."""
    if kind == "self":
        return _self(fields)
    if kind == "package":
        return {
            "package": fields.text("package"),
            "paths": fields.texts("files"),
            "format": fields.choice("format", FORMATS),
            "field": _way(fields, None),
        }
    stdlib = sysconfig.get_path("stdlib")
    options: dict[str, Any] = {
        "paths": tuple(path.replace("{stdlib}", stdlib) for path in fields.texts("path"))
    }
    if kind == "text":
        options["unit"] = fields.choice("unit", UNITS, "paragraph")
    elif kind == "jsonl":
        options["field"] = _way(fields, "prompt")
    return options


def _self(fields: Fields) -> dict[str, Any]:
    temperature = fields.number("temperature", 1.0, low=0.01, high=100)
    return {
        "starts": fields.texts("starts", ("",)),
        "temperature": temperature,
        "max_tokens": fields.integer("max_tokens", 128),
    }


def _way(fields: Fields, default: str | None) -> tuple[str, ...]:
    text = fields.text("field", default)
    return () if text is None else tuple(text.split("."))


def _length(fields: Fields, default: tuple[int, int]) -> tuple[int, int]:
    value = fields.any("length", list(default))
    right = isinstance(value, list) and len(value) == 2
    if not right or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        raise fields.refuse("length", "shortest and longest, in characters, as [20, 2000]")
    if not 1 <= value[0] <= value[1]:
        raise fields.refuse("length", "at least 1 character, and the shortest first")
    return value[0], value[1]
