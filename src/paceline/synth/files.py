"""The files of a source: globs and folders, or a part of an installed package."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from importlib import metadata
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.synth.source_spec import (
    PackageSource,
    PhraseSource,
    RecordSource,
    SourceSpec,
    TextSource,
)

SUFFIXES = {"function": ("*.py",), "paragraph": ("*.txt", "*.md", "*.rst")}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, and its name in rows: its way below the folder that all files of a source share."""

    path: Path
    name: str


def source_files(spec: SourceSpec) -> list[SourceFile]:
    """Return the files in the order of their names. Raises InvalidRequest where there is none."""
    if isinstance(spec, PackageSource):
        field, patterns, expected = "files", spec.files, f"of the package {spec.package}"
        paths = sorted(set(_packaged(spec)))
    else:
        assert isinstance(spec, RecordSource | TextSource | PhraseSource)
        field, patterns, expected = "path", spec.path, "from the folder of app.yaml"
        suffixes = SUFFIXES[spec.unit] if isinstance(spec, TextSource) else ("*.jsonl",)
        paths = sorted(set(_globbed(spec.path, suffixes)))
    if not paths:
        raise InvalidRequest(field, list(patterns), f"at least one file {expected}")
    root = Path(os.path.commonpath([path.parent for path in paths]))
    return [SourceFile(path, path.relative_to(root).as_posix()) for path in paths]


def licence_of(spec: SourceSpec) -> str:
    """Return the licence that the description states, or that of the package's own metadata."""
    if spec.licence or not isinstance(spec, PackageSource):
        return spec.licence or "not stated"
    about = metadata.metadata(spec.package).json
    licence = about.get("license_expression") or about.get("license")
    classifiers = [
        name.rsplit(" :: ", 1)[-1]
        for name in about.get("classifier", ())
        if name.startswith("License ::")
    ]
    return (str(licence or ", ".join(classifiers)).strip() or "not stated").splitlines()[0]


def _globbed(patterns: tuple[str, ...], suffixes: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        for path in map(Path, glob(pattern, recursive=True)):
            if path.is_dir():
                yield from (file for suffix in suffixes for file in path.rglob(suffix))
            else:
                yield path


def _packaged(spec: PackageSource) -> Iterator[Path]:
    try:
        files = metadata.files(spec.package)
    except metadata.PackageNotFoundError as error:
        expected = f"an installed package: pip install {spec.package}"
        raise InvalidRequest("package", spec.package, expected) from error
    for file in files or ():
        if any(fnmatch.fnmatchcase(file.as_posix(), pattern) for pattern in spec.files):
            yield Path(str(file.locate())).resolve()
