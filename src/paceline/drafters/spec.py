"""Read what a user writes for a drafter, `[NAME=]KIND[:VALUE][,key=value...]`, and build it.

    ngram                           kind ngram, registered as "ngram"
    suffix,max_draft_len=8          with an option
    small=draft_model:/models/tiny  kind draft_model, registered as "small"
    small=Qwen/Qwen2.5-0.5B         a folder, GGUF file, hub id or catalogue name is a draft_model,
    fast=/models/my-dflash          or a DFlash drafter, if that is what the folder or id holds
    replay:answers.json,al=4        a kind that takes a value

Every option is checked by the drafter that is built; nothing unknown is ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.core import MAX_DRAFT_LEN, InvalidRequest
from paceline.core.spec_line import GRAMMAR, SpecLine
from paceline.drafters.base import BuildContext, Drafter, DrafterSpec, build, kinds
from paceline.models.catalog import CATALOGUE, HUB_ID, pull
from paceline.models.dflash.checkpoint import is_drafter

MODEL_KIND, DRAFTER_KIND = "draft_model", "dflash"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
Reader = Callable[[str, str], Any]  # (field, text) -> value, or InvalidRequest


def make_drafters(texts: Iterable[str], context: BuildContext) -> dict[str, Drafter]:
    """Build the drafters of these specs, by name. Raises InvalidRequest for a name used twice."""
    drafters: dict[str, Drafter] = {}
    for text in texts:
        spec = resolve(parse_spec(text))
        if spec.name in drafters:
            raise InvalidRequest("drafter", spec.name, "a name of its own for each drafter")
        drafters[spec.name] = build(spec, context)
    return drafters


def parse_spec(text: str) -> DrafterSpec:
    """Parse one drafter. Raises InvalidRequest for bad syntax and for an unknown kind."""
    line = SpecLine.parse(text)
    name, kind, value = _resolve_kind(line)
    options = tuple((key, setting) for key, (setting,) in line.options.items())
    return DrafterSpec(name=name or kind, kind=kind, value=value, options=options)


def _resolve_kind(line: SpecLine) -> tuple[str | None, str, str | None]:
    """Return the name, the kind and the value of a line whose kind may be left out."""
    name, head = line.name, line.head
    if name is not None and not _NAME.fullmatch(name):
        expected = f"{GRAMMAR}; names are letters, digits, '.', '_', '-'"
        raise InvalidRequest("drafter", line.text, expected)
    if line.kind in kinds():
        return name, line.kind, line.value
    if name in kinds():  # `replay=answers.json` says the same as `replay:answers.json`
        return name, name, head
    if not _looks_like_model(head):
        expected = "one of " + ", ".join(kinds()) + ", or a model (folder, GGUF file, hub id, name)"
        raise InvalidRequest("drafter", line.kind, expected)
    return name, _kind_of(head), head


def _kind_of(model: str) -> str:
    return DRAFTER_KIND if is_drafter(Path(model).expanduser()) else MODEL_KIND


def resolve(spec: DrafterSpec) -> DrafterSpec:
    """A hub id says only once it is fetched whether a drafter or a model lies there.

    Raises ModelError where it cannot be fetched.
    """
    value = spec.value
    if spec.kind != MODEL_KIND or value is None or Path(value).expanduser().exists():
        return spec
    if value in CATALOGUE or not HUB_ID.fullmatch(value) or not is_drafter(pull(value)):
        return spec
    return replace(spec, kind=DRAFTER_KIND)


def _looks_like_model(value: str) -> bool:
    return "/" in value or value in CATALOGUE or Path(value).exists()


def read_options(spec: DrafterSpec, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """The options that `spec` sets, converted; InvalidRequest for unknown keys and bad values."""
    settings = {}
    for key, text in spec.options:
        if key not in readers:
            expected = "one of " + ", ".join(readers) if readers else "no options"
            raise InvalidRequest(f"drafter {spec.name}", key, expected)
        settings[key] = readers[key](f"drafter {spec.name}, {key}", text)
    return settings


def refuse_value(spec: DrafterSpec) -> None:
    """For kinds that are built from nothing: a value would be ignored, so it is an error."""
    if spec.value is not None:
        raise InvalidRequest(f"drafter {spec.name}", spec.value, f"no value after {spec.kind}")


def whole(low: int, high: int) -> Reader:
    def read(field: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or not low <= int(text) <= high:
            raise InvalidRequest(field, text, f"a whole number from {low} to {high}")
        return int(text)

    return read


def real(low: float, high: float) -> Reader:
    def read(field: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise InvalidRequest(field, text, f"a number from {low:g} to {high:g}")
        return number

    return read


def one_of(*allowed: str) -> Reader:
    def read(field: str, text: str) -> str:
        if text not in allowed:
            raise InvalidRequest(field, text, "one of " + ", ".join(allowed))
        return text

    return read


def draft_len() -> Reader:
    """Reader of `max_draft_len`, the one option that every drafter has."""
    return whole(1, MAX_DRAFT_LEN)
