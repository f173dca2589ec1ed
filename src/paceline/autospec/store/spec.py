"""The spec of a version: which folders it names, and what they say of their target.

A spec is what `--drafter` takes, without a name: `suffix`, `hybrid:FOLDER`, `FOLDER`,
`suffix,corpus=FOLDER`. In the store its folders are places, `{network}` and `{corpus}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.autospec.store.records import CORPUS, NETWORK, TargetIdentity
from paceline.core import InvalidRequest
from paceline.core.checksums import sha256_of_json
from paceline.core.documents import read_json_object
from paceline.core.names import local_path
from paceline.core.spec_line import SpecLine

FOLDER_KIND = "dflash"  # the kind of a spec that is a folder alone
PROVENANCE, OWN_FILE = "provenance.json", "paceline.json"  # where a folder names its target
_KEYS = {
    "name": "name",
    "weights": "weights_sha256",
    "tokenizer": "tokenizer_sha256",
    "template": "template",
}


@dataclass(frozen=True, slots=True)
class FolderSpec:
    """A parsed spec: `form` has places for the folders, which are `folders` by role."""

    kind: str
    form: str
    folders: Mapping[str, Path]

    @classmethod
    def parse(cls, text: str) -> FolderSpec:
        """Read a spec. Raises InvalidRequest (field `spec`) for a name, for what is not there and
        for braces."""
        if set(text) & {"{", "}"}:
            raise InvalidRequest("spec", text, "a spec without braces")
        line = SpecLine.parse(text)
        if line.name is not None:
            expected = "a spec without NAME=: the version's own name is the drafter's name"
            raise InvalidRequest("spec", text, expected)
        kind, value, folders = line.kind, line.value, dict[str, Path]()
        if value is None and _names_folder(kind):
            kind, value = FOLDER_KIND, kind
        if value is not None:
            folders[NETWORK] = _folder(value)
        form = kind if value is None else f"{kind}:{{{NETWORK}}}"
        for key, values in line.options.items():
            if key == CORPUS:
                folders[CORPUS] = _folder(*values)
            form += f",{key}={{{CORPUS}}}" if key == CORPUS else f",{key}={','.join(values)}"
        return cls(kind, form, folders)

    def target(self) -> TargetIdentity:
        """Return what the folders say of their target. Raises InvalidRequest where two of them
        contradict each other."""
        known = TargetIdentity()
        for folder in self.folders.values():
            stated = target_of(folder)
            part = known.differs(stated)
            if part is not None:
                raise InvalidRequest("spec", str(folder), f"folders for one {part} of the target")
            known = known.completed(stated)
        return known


def checksum_of(form: str, artefacts: Mapping[str, str]) -> str:
    """Return the checksum that stands for a version's spec and the bytes of its folders."""
    return sha256_of_json({"spec": form, "artefacts": dict(artefacts)})


def target_of(folder: Path) -> TargetIdentity:
    """Return what a folder says of the target that it was made for. Raises InvalidRequest for a
    file that cannot be read."""
    for file in (PROVENANCE, OWN_FILE):
        if (folder / file).is_file():
            stated = _target_in(read_json_object(folder / file, "spec"))
            if stated is not None:
                return stated
    return TargetIdentity()


def _target_in(document: Mapping[str, Any]) -> TargetIdentity | None:
    """Return the target in a file of ours: `target` of a provenance, or the few fields about it
    that a drafter's own file has."""
    target = document.get("target")
    if isinstance(target, Mapping):
        return TargetIdentity(**{part: _text(target.get(key)) for part, key in _KEYS.items()})
    own = document.get("provenance")
    if isinstance(own, Mapping) and own:
        return TargetIdentity(name=_text(own.get("target")), template=_text(own.get("template")))
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _names_folder(word: str) -> bool:
    """Return whether a word is the path of a drafter's folder rather than a kind of drafters."""
    return "/" in word or (local_path(word, "spec") / "config.json").is_file()


def _folder(word: str) -> Path:
    path = local_path(word, "spec")
    if not path.is_dir():
        expected = (
            "a folder that exists; `paceline pull` fetches a drafter of the hub and prints its "
            "folder"
        )
        raise InvalidRequest("spec", word, expected)
    return path.resolve()
