"""The files of a source: globs and folders, and what lies in an installed package."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from importlib import metadata
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.synth.source_spec import SourceSpec

SUFFIXES = {"function": ("*.py",), "paragraph": ("*.txt", "*.md", "*.rst")}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, and what rows call it: its way below the folder that all of them share."""

    path: Path
    name: str


def source_files(spec: SourceSpec) -> list[SourceFile]:
    """In the order of their names. Raises InvalidRequest where there is none."""
    found = sorted(set(_packaged(spec) if spec.kind == "package" else _globbed(spec)))
    if not found:
        field = "files" if spec.kind == "package" else "path"
        expected = "at least one file, from the folder of app.yaml"
        if spec.kind == "package":
            expected = f"at least one file of the package {spec.package}"
        raise InvalidRequest(f"{spec.where}.{field}", list(spec.paths), expected)
    root = Path(os.path.commonpath([path.parent for path in found]))
    return [SourceFile(path, path.relative_to(root).as_posix()) for path in found]


def licence_of(spec: SourceSpec) -> str:
    """As the description states it, or the package's own metadata."""
    if spec.licence or spec.kind != "package":
        return spec.licence or "not stated"
    about = metadata.metadata(spec.package).json
    stated = about.get("license_expression") or about.get("license")
    classifiers = [
        name.rsplit(" :: ", 1)[-1]
        for name in about.get("classifier", ())
        if name.startswith("License ::")
    ]
    return (str(stated or ", ".join(classifiers)).strip() or "not stated").splitlines()[0]


def _globbed(spec: SourceSpec) -> Iterator[Path]:
    for pattern in spec.paths:
        for name in glob(str(spec.folder / Path(pattern).expanduser()), recursive=True):
            path = Path(name)
            if path.is_dir():
                suffixes = SUFFIXES[spec.unit] if spec.kind == "text" else ("*.jsonl",)
                yield from (file for suffix in suffixes for file in path.rglob(suffix))
            else:
                yield path


def _packaged(spec: SourceSpec) -> Iterator[Path]:
    try:
        files = metadata.files(spec.package)
    except metadata.PackageNotFoundError as error:
        expected = f"an installed package: pip install {spec.package}"
        raise InvalidRequest(f"{spec.where}.package", spec.package, expected) from error
    for file in files or ():
        if any(fnmatch.fnmatchcase(file.as_posix(), pattern) for pattern in spec.paths):
            yield Path(str(file.locate())).resolve()
