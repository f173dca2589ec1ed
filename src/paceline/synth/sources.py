"""Reads the prompts of every source, without duplicates, before any time is spent on answers."""

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
from paceline.synth.phrases import filled
from paceline.synth.pieces import functions, paragraphs
from paceline.synth.prompts import Prompt, keyed, make_prompt
from paceline.synth.source_spec import SourceSpec
from paceline.synth.strict_yaml import parse_yaml


@dataclass(slots=True)
class Source:
    """A source with what was found in it. `dropped` counts what was found and not taken, by reason;
    `prompts` is empty for `self`, which writes them as it goes."""

    spec: SourceSpec
    licence: str
    prompts: list[Prompt] = field(default_factory=list)
    found: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """What the manifest keeps: another content is another set."""
        digest = hashlib.sha256("\n".join(p.key + p.place for p in self.prompts).encode())
        return {
            "name": self.spec.name,
            "licence": self.licence,
            "prompts": len(self.prompts),
            "dropped": dict(sorted(self.dropped.items())),
            "sha256": digest.hexdigest(),
        }


def read_sources(specs: Sequence[SourceSpec], seed: int, user_data: bool = False) -> list[Source]:
    """The sources with their prompts, each in the order in which they are asked.

    A prompt that two sources have belongs to the first. Raises InvalidRequest for a source without
    prompts, and for users' data where that was not asked for.
    """
    for spec in specs:
        if spec.user_data and not user_data:
            expected = "a source of public data; users' own data needs --user-data"
            raise InvalidRequest(f"{spec.where}.user_data", True, expected)
    known: set[str] = set()
    return [_read(spec, seed, known) for spec in specs]


def _read(spec: SourceSpec, seed: int, known: set[str]) -> Source:
    if spec.kind == "self":
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
        elif prompt.key in known:
            source.dropped["duplicate_prompt"] += 1
        else:
            known.add(prompt.key)
            source.prompts.append(prompt)
    if not source.prompts:
        reasons = ", ".join(f"{count} {why}" for why, count in source.dropped.items())
        expected = f"at least one prompt; {source.found} found" + (
            f" ({reasons})" if reasons else ""
        )
        raise InvalidRequest(spec.where, spec.name, expected)
    source.prompts.sort(key=lambda prompt: keyed(seed, spec.name, prompt.key))
    if spec.count is not None:
        del source.prompts[spec.count :]
    return source


def _values(
    spec: SourceSpec, files: list[SourceFile], dropped: Counter[str]
) -> Iterator[tuple[Any, str]]:
    """Every value that may be a prompt, with its place."""
    for file in files:
        try:
            text = file.path.read_text("utf-8")
        except (OSError, ValueError) as error:
            if spec.kind == "text" and isinstance(error, ValueError):
                dropped["unreadable_file"] += 1  # folders hold files in old encodings
                continue
            expected = f"readable UTF-8 files; {file.name}: {error}"
            raise InvalidRequest(spec.where, spec.name, expected) from error
        for number, value in enumerate(_texts(spec, file, text, dropped)):
            yield value, f"{number}" if len(files) == 1 else f"{file.name}:{number}"


def _texts(spec: SourceSpec, file: SourceFile, text: str, dropped: Counter[str]) -> Iterable[Any]:
    if spec.kind == "phrases":
        return filled(spec, parse_yaml(text, file.name, spec.where))
    if spec.kind != "text":
        return _records(spec, file, text, dropped)
    if spec.unit == "paragraph":
        return paragraphs(text, *spec.length)
    try:
        return list(functions(text))
    except (SyntaxError, ValueError):
        dropped["unreadable_file"] += 1
        return ()


def _records(spec: SourceSpec, file: SourceFile, text: str, dropped: Counter[str]) -> Iterator[Any]:
    for record in _parsed(spec, file, text):
        found = False
        for value in selected(record, spec.field):
            found = True
            yield value
        if not found:
            dropped["no_field"] += 1


def _parsed(spec: SourceSpec, file: SourceFile, text: str) -> Iterator[Any]:
    line = 0
    try:
        if spec.format == "jsonl":
            # Not splitlines(): JSON strings may hold the separators that it also splits at.
            for one in text.split("\n"):
                line += 1
                if one.strip():
                    yield json.loads(one)
        elif spec.format == "csv":
            yield from csv.DictReader(io.StringIO(text), strict=True)
        elif spec.format == "json":
            yield json.loads(text)
        else:
            yield parse_yaml(text, file.name, spec.where)
    except InvalidRequest:
        raise
    except (ValueError, csv.Error, RecursionError) as error:
        at = f", line {line}" if line else ""
        expected = f"valid {spec.format}; {file.name}{at}: {error}"
        raise InvalidRequest(spec.where, spec.name, expected) from error


def selected(record: Any, way: Sequence[str]) -> Iterator[Any]:
    """The values at the end of a way of names, list places and `*` for each. What the way misses
    yields nothing."""
    if not way:
        yield record
        return
    step, rest = way[0], way[1:]
    if isinstance(record, dict):
        inner = list(record.values()) if step == "*" else [record[step]] if step in record else []
    elif isinstance(record, list):
        at = int(step) if step.isdecimal() else len(record)
        inner = record if step == "*" else record[at : at + 1]
    else:
        inner = []
    for value in inner:
        yield from selected(value, rest)
