"""Read what a user writes for a drafter, `[NAME=]KIND[:VALUE][,key=value...]`, and build it.

    ngram                           kind ngram, registered as "ngram"
    suffix,max_draft_len=8          with an option
    small=draft_model:/models/tiny  kind draft_model, registered as "small"
    small=Qwen/Qwen2.5-0.5B         a folder, GGUF file, hub id or catalogue name is a draft_model,
    fast=/models/my-dflash          or a DFlash drafter, if that is what the folder or id holds
    smollm2-135m                    the DFlash drafter that is shipped for the model of this name;
                                    draft_model:smollm2-135m is that model itself
    replay:answers.json,al=4        a kind that takes a value

Every option is checked by the drafter that is built; nothing unknown is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from paceline.core import InvalidRequest, ModelError
from paceline.core.names import local_path
from paceline.core.spec_line import GRAMMAR, SpecLine
from paceline.drafters import (
    dflash,
    draft_model,
    hybrid,
    mock,
    ngram,
    replay,
    shipped,
    suffix,
)
from paceline.drafters.base import Drafter
from paceline.drafters.kinds import KINDS, BuildContext, DrafterSpec, build
from paceline.models.catalog import is_name, pull
from paceline.models.dflash.checkpoint import is_drafter
from paceline.models.hub import HUB_ID

__all__ = ["build", "label", "make_drafters", "parse_spec"]
# The modules that register a kind.
MODULES = (dflash, draft_model, hybrid, mock, ngram, replay, suffix)
# Kinds that draft for any target as they are, and kinds that draft from earlier answers.
BASELINES = tuple(sorted(kind for kind, entry in KINDS.items() if entry.untrained))
REMEMBERING = tuple(sorted(kind for kind, entry in KINDS.items() if entry.remembers))
MODEL_KIND, DRAFTER_KIND = "draft_model", "dflash"
NETWORK_KINDS = (MODEL_KIND, DRAFTER_KIND, "hybrid")  # whose value names a network's folder
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def make_drafters(texts: Iterable[str], context: BuildContext) -> dict[str, Drafter]:
    """Build the drafters of these specs, by name. Raises InvalidRequest for a name used twice."""
    drafters: dict[str, Drafter] = {}
    for text in texts:
        spec = _resolve(parse_spec(text))
        if spec.name in drafters:
            raise InvalidRequest("drafter", spec.name, "a name of its own for each drafter")
        drafters[spec.name] = build(spec, context)
    return drafters


def parse_spec(text: str) -> DrafterSpec:
    """Parse one drafter. Raises InvalidRequest for bad syntax and for an unknown kind."""
    line = SpecLine.parse(text)
    name, kind, value = line.name, line.kind, line.value
    if name is not None and not NAME.fullmatch(name):
        expected = f"{GRAMMAR}; names are letters, digits, '.', '_', '-'"
        raise InvalidRequest("drafter", text, expected)
    if kind not in KINDS:
        value = line.head
        if name in KINDS:  # `replay=answers.json` says the same as `replay:answers.json`
            kind = name
        elif "/" in value or is_name(value) or local_path(value, "drafter").exists():
            kind = DRAFTER_KIND if _names_drafter(value) else MODEL_KIND
        else:
            kinds = ", ".join(sorted(KINDS))
            expected = f"one of {kinds}, or a drafter or model (folder, GGUF file, hub id, name)"
            raise InvalidRequest("drafter", kind, expected)
    options = tuple((key, setting) for key, (setting,) in line.options.items())
    return DrafterSpec(name or kind, kind, value, options)


def _names_drafter(value: str) -> bool:
    """Return whether a folder or name is that of a DFlash drafter, without fetching anything."""
    return shipped.shipped_folder(value) is not None or is_drafter(local_path(value, "drafter"))


def network_folders(texts: Iterable[str], target: str) -> list[Path]:
    """Return the folders of the networks that these specs load beside a target of this name.

    Raises ModelError naming a drafter that is not there.
    """
    folders = []
    for spec in map(parse_spec, texts):
        if spec.kind in NETWORK_KINDS and spec.value is not None:
            folders.append(network_folder(spec))
        elif spec.kind == "auto" and (shipped.FOLDERS / target).is_dir():
            folders.append(shipped.FOLDERS / target)
    return folders


def network_folder(spec: DrafterSpec) -> Path:
    """Return the folder of the network that a spec names, fetched where it is a hub id. Raises
    ModelError where it is not there."""
    value = str(spec.value)
    try:
        is_model = spec.kind == MODEL_KIND
        folder = pull(value, what="drafter") if is_model else shipped.drafter_folder(value)
    except ModelError as error:
        raise ModelError(f"drafter {spec.name}: {error}") from error
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"drafter {spec.name}: {folder} has no config.json; expected the folder of a DFlash "
            "drafter or of a small model"
        )
    return folder


def label(spec: DrafterSpec) -> str:
    """Return what reports call a drafter: the name it was given, else the last part of its folder
    or id."""
    if spec.value is None or spec.name != spec.kind or spec.kind not in (MODEL_KIND, DRAFTER_KIND):
        return spec.name
    return Path(spec.value).name


def _resolve(spec: DrafterSpec) -> DrafterSpec:
    """A hub id says only once it is fetched whether a drafter or a model lies there.

    Raises ModelError where it cannot be fetched.
    """
    value = spec.value
    if spec.kind != MODEL_KIND or value is None or local_path(value, "drafter").exists():
        return spec
    if not HUB_ID.fullmatch(value) or is_name(value) or not is_drafter(pull(value, what="drafter")):
        return spec
    return replace(spec, kind=DRAFTER_KIND)
