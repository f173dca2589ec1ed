"""A training set on disk: shards of token ids with loss spans, and a manifest that says whose.

manifest.json                 target, application, counts, and every shard with its SHA-256
train-00000.parquet, ...      what a drafter is trained on: the application's task, and replay
held_out-00000.parquet, ...   the same kinds of text, never trained on
neighbour-00000.parquet, ...  other kinds of text, never trained on: what must not get worse

A shard appears under its name only when it is whole, and counts only once the manifest names it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.extra import parquet_module

FORMAT = "paceline-set/1"
MANIFEST = "manifest.json"
SPLITS = ("train", "held_out", "neighbour")
PARTS = ("on_task", "replay", "neighbour")


@dataclass(frozen=True, slots=True)
class Row:
    """One text that the target wrote: `ids` is prompt and answer, and `spans` are the half-open
    ranges of `ids` that the target said, so that may be learnt.

    `source` names where its prompt came from ("chitchat#118"), `part` one of PARTS, `key` is a
    digest of prompt and sampling by which duplicates are known.
    """

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    source: str
    part: str
    language: str
    finish_reason: str
    temperature: float
    seed: int
    key: str


@dataclass(frozen=True, slots=True)
class Shard:
    file: str
    split: str
    rows: int
    tokens: int
    answer_tokens: int
    sha256: str


@dataclass(slots=True)
class Manifest:
    """What a set is. `target` has name, weights_sha256, tokenizer_sha256 and template (a digest, as
    in loader.template_digest); `app` is the application as it was read, and what its
    answers were bound to (binding.read_binding); `counts` says what was dropped, and why."""

    target: dict[str, Any]
    app: dict[str, Any]
    user_data: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    shards: list[Shard] = field(default_factory=list)

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    @property
    def digest(self) -> str:
        """SHA-256 over what the set holds, whatever its folder is called."""
        text = json.dumps(_as_json(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Raises InvalidRequest (field `set`) where the folder holds no set, or a newer format."""
    path = folder / MANIFEST
    try:
        given = json.loads(path.read_text("utf-8"))
        if given.pop("format") != FORMAT:
            raise InvalidRequest("set", str(folder), f"a set of the format {FORMAT}")
        return Manifest(**given | {"shards": [Shard(**shard) for shard in given["shards"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, InvalidRequest):
            raise
        expected = f"a folder that `paceline synth` wrote, with a readable {MANIFEST} ({error})"
        raise InvalidRequest("set", str(folder), expected) from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replaces the manifest in one step: a kill leaves the old one or the new one."""
    write_whole(folder / MANIFEST, json.dumps(_as_json(manifest), indent=1).encode() + b"\n")


def _as_json(manifest: Manifest) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(manifest)}


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that under its name there is never half of it, a power cut included."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_shard(folder: Path, split: str, index: int, rows: Sequence[Row]) -> Shard:
    """Writes rows as SPLIT-INDEX.parquet; the manifest is the caller's to write."""
    parquet = parquet_module()
    import pyarrow as arrow

    columns: dict[str, list[Any]] = {name: [] for name in _schema().names}
    for row in rows:
        for name, value in asdict(row).items():
            columns[name].append(value)
    columns["spans"] = [[{"start": start, "end": end} for start, end in row.spans] for row in rows]
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns, schema=_schema()), sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    name = f"{split}-{index:05d}.parquet"
    write_whole(folder / name, data)
    answers = sum(end - start for row in rows for start, end in row.spans)
    tokens = sum(len(row.ids) for row in rows)
    digest = hashlib.sha256(data).hexdigest()
    return Shard(name, split, len(rows), tokens, answers, digest)


def read_rows(folder: Path, split: str) -> Iterator[Row]:
    """The rows of a split, in the order they were written.

    Raises InvalidRequest (field `set`) where a shard is missing, or not what the manifest says.
    """
    import io

    parquet = parquet_module()
    for shard in read_manifest(folder).of(split):
        path = folder / shard.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InvalidRequest("set", str(path), f"a readable shard ({error})") from error
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            expected = "a shard as the manifest has it; this one was changed or damaged"
            raise InvalidRequest("set", str(path), expected)
        # Without threads: pyarrow's pool, once started, may abort the process when that ends.
        table = parquet.ParquetFile(io.BytesIO(data)).read(use_threads=False)
        for given in table.to_pylist():
            yield _row(given)


def _row(given: Mapping[str, Any]) -> Row:
    spans = tuple((span["start"], span["end"]) for span in given["spans"])
    return Row(**{**given, "ids": tuple(given["ids"]), "spans": spans})


def _schema() -> Any:
    import pyarrow as arrow

    span = arrow.struct([("start", arrow.int32()), ("end", arrow.int32())])
    return arrow.schema(
        [
            ("ids", arrow.list_(arrow.int32())),
            ("spans", arrow.list_(span)),
            ("source", arrow.string()),
            ("part", arrow.string()),
            ("language", arrow.string()),
            ("finish_reason", arrow.string()),
            ("temperature", arrow.float64()),
            ("seed", arrow.uint64()),
            ("key", arrow.string()),
        ]
    )
