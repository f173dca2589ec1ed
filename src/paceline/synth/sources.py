"""The prompts of every source, read without duplicates before any time is spent on answers."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core import InvalidRequest
from paceline.synth.files import SourceFile, licence_of, source_files
from paceline.synth.prompts import SourcePrompt, keyed, make_prompt
from paceline.synth.source_spec import (
    COUNT_OF_PHRASES,
    PackageSource,
    PhraseSource,
    RecordSource,
    SourceSpec,
    TextSource,
    TurnSource,
)
from paceline.synth.texts import filled_phrases, functions, paragraphs, parse_yaml


@dataclass(slots=True)
class Source:
    """A source with its prompts. `found` counts the values that were read, and `dropped` those that
    became no prompt, by reason; a TurnSource has no prompts, because the target writes them."""

    spec: SourceSpec
    licence: str
    prompts: list[SourcePrompt] = field(default_factory=list)
    found: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return what the manifest keeps: another content is another set."""
        digest = hashlib.sha256("\n".join(p.key + p.place for p in self.prompts).encode())
        return {
            "name": self.spec.name,
            "licence": self.licence,
            "prompts": len(self.prompts),
            "dropped": dict(sorted(self.dropped.items())),
            "sha256": digest.hexdigest(),
        }


def read_sources(specs: Sequence[SourceSpec], seed: int, user_data: bool = False) -> list[Source]:
    """Read the prompts of the sources, each in the order in which they are asked.

    A prompt that two sources have belongs to the first. Raises InvalidRequest for a source without
    prompts, and for users' data unless `user_data` allows it.
    """
    for spec in specs:
        if spec.user_data and not user_data:
            expected = "a source of public data; users' own data needs --user-data"
            raise InvalidRequest(f"{spec.where}.user_data", True, expected)
    taken: set[str] = set()
    sources = []
    for spec in specs:
        try:
            sources.append(_read(spec, seed, taken))
        except InvalidRequest as error:
            raise error.within(spec.where) from error
    return sources


def _read(spec: SourceSpec, seed: int, taken: set[str]) -> Source:
    """Read one source without the prompts whose keys are in `taken`, and add its keys there.

    The InvalidRequest that it raises names fields of the source.
    """
    if isinstance(spec, TurnSource):
        return Source(spec, spec.licence or "the target's own")
    files = source_files(spec)
    source = Source(spec, licence_of(spec))
    for value, place in _values(spec, files, source.dropped):
        source.found += 1
        prompt = make_prompt(value, place)
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


def _values(
    spec: SourceSpec, files: list[SourceFile], dropped: Counter[str]
) -> Iterator[tuple[Any, str]]:
    """Yield every value that may be a prompt, with its place."""
    for file in files:
        try:
            text = file.path.read_text("utf-8")
        except (OSError, ValueError) as error:
            if isinstance(spec, TextSource) and isinstance(error, ValueError):
                dropped["unreadable_file"] += 1  # folders hold files in old encodings
                continue
            expected = f"readable UTF-8 files; {file.name}: {error}"
            raise InvalidRequest("", spec.name, expected) from error
        for number, value in enumerate(_texts(spec, file, text, dropped)):
            yield value, f"{number}" if len(files) == 1 else f"{file.name}:{number}"


def _texts(spec: SourceSpec, file: SourceFile, text: str, dropped: Counter[str]) -> Iterable[Any]:
    if isinstance(spec, PhraseSource):
        content = parse_yaml(text, file.name, "path")
        return filled_phrases(content, spec.name, spec.count or COUNT_OF_PHRASES)
    if not isinstance(spec, TextSource):
        assert isinstance(spec, RecordSource | PackageSource)
        return _records(spec, file, text, dropped)
    if spec.unit == "paragraph":
        return paragraphs(text, *spec.length)
    try:
        return list(functions(text))
    except (SyntaxError, ValueError):
        dropped["unreadable_file"] += 1
        return ()


def _records(
    spec: RecordSource | PackageSource, file: SourceFile, text: str, dropped: Counter[str]
) -> Iterator[Any]:
    for record in _parsed(spec, file, text):
        values = list(selected(record, spec.field))
        if not values:
            dropped["no_field"] += 1
        yield from values


def _parsed(spec: RecordSource | PackageSource, file: SourceFile, text: str) -> Iterator[Any]:
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
            yield parse_yaml(text, file.name, "")
    except InvalidRequest:
        raise
    except (ValueError, csv.Error, RecursionError) as error:
        at = f", line {number}" if number else ""
        expected = f"valid {spec.format}; {file.name}{at}: {error}"
        raise InvalidRequest("", spec.name, expected) from error


def selected(record: Any, way: Sequence[str]) -> Iterator[Any]:
    """Yield the values at the end of a way of names, list places and `*` for each. A record without
    the next step of the way yields nothing."""
    if not way:
        yield record
        return
    step, rest = way[0], way[1:]
    values: list[Any] = []
    if isinstance(record, dict):
        values = list(record.values()) if step == "*" else [record[step]] if step in record else []
    elif isinstance(record, list):
        place = int(step) if step.isdecimal() else len(record)
        values = record if step == "*" else record[place : place + 1]
    for value in values:
        yield from selected(value, rest)
