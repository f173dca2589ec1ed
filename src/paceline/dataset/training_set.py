"""A training set on disk: shards of token ids with loss spans, and a manifest that describes them.

manifest.json                 target, application, counts, and every shard with its SHA-256
train-00000.parquet, ...      what a drafter is trained on: the application's task, and replay
held_out-00000.parquet, ...   the same kinds of text, never trained on
neighbour-00000.parquet, ...  other kinds of text, never trained on: what must not get worse
foreign-00000.parquet, ...    the application's task in prompts from elsewhere, never trained on

A shard gets its name only when it is complete, and counts only once the manifest names it.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PrivateAttr

from paceline.core import Grammar, InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import Expected, NonEmpty, Several
from paceline.core.packages import MissingPackage

FORMAT = "paceline-set/1"
MANIFEST = "manifest.json"
Split = Literal["train", "held_out", "neighbour", "foreign"]
Part = Literal["on_task", "replay", "neighbour", "foreign"]
SPLITS: tuple[Split, ...] = get_args(Split)
PARTS: tuple[Part, ...] = get_args(Part)


def train_package(module: str, package: str) -> Any:
    """Import a module of a package of the extra `train`, when it is needed. Raises
    MissingPackage."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage("training sets need", package) from error


def parquet_module() -> Any:
    return train_package("pyarrow.parquet", "pyarrow")


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A text that the target wrote: `ids` is prompt and answer, and `spans` are the half-open
    ranges of `ids` that the target said, so that may be learnt.

    `source` names where its prompt came from ("chitchat#118"), `part` is one of PARTS, and `key` a
    digest of prompt and sampling by which duplicates are known. `prompt` is the user's last turn as
    its source has it, and `origin` the phrase or the beginning that it was made from: "" where it
    was made from none, and in sets that are older than these fields.
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
    prompt: str = ""
    origin: str = ""

    @property
    def answer_tokens(self) -> int:
        return sum(end - start for start, end in self.spans)


class Shard(Document):
    """A file of rows of one split, as the manifest describes it."""

    file: str
    split: Split
    rows: int
    tokens: int
    answer_tokens: int
    sha256: str


class Manifest(Document):
    """The description of a set. `target` has name, weights_sha256, tokenizer_sha256 and template (a
    digest, as in loader.template_digest); `app` is the application as it was read, what its answers
    were bound to (read_binding), how its prompts were split, and how much the splits share;
    `counts` says what was dropped, and why."""

    target: dict[str, str]
    app: dict[str, Any]
    user_data: bool = False
    counts: dict[str, int] = Field(default_factory=dict)
    shards: list[Shard] = Field(default_factory=list)

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    @property
    def digest(self) -> str:
        """SHA-256 over the content of the set, whatever its folder is called."""
        text = json.dumps(self.as_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def as_json(self) -> dict[str, object]:
        return {"format": FORMAT, **self.model_dump(mode="json")}


class Binding(Document):
    """A grammar that binds the answers to the prompts of `sources`, and no other answers. An
    evaluation on the set binds its answers to the same grammar."""

    kind: Literal["json_schema", "regex", "lark"]
    value: NonEmpty
    sources: Annotated[tuple[NonEmpty, ...], Expected("a list of names", bool), Several]
    _where: str = PrivateAttr("bound")

    @property
    def grammar(self) -> Grammar:
        return Grammar(self.kind, self.value, f"{self._where}.value")

    def of(self, source: str) -> Grammar | None:
        """Return the grammar of the row with this `source` ("chitchat#118"), None if free."""
        return self.grammar if source.partition("#")[0] in self.sources else None


def read_binding(app: Mapping[str, Any], where: str) -> Binding | None:
    """Read the binding from the `app` of a manifest, which is found at `where`. Return None for a
    set whose answers are free, and for a set that is older than this field.

    Raises InvalidRequest, naming the field; compiling the grammar needs the model's tokenizer.
    """
    if app.get("bound") is None:
        return None
    where = f"{where}.bound"
    binding = Binding.read(app["bound"], where)
    binding._where = where
    return binding


def read_manifest(folder: Path) -> Manifest:
    """Raises InvalidRequest (field `set`) where the folder holds no set, or a newer format."""
    try:
        content = json.loads((folder / MANIFEST).read_text("utf-8"))
        if content.pop("format") == FORMAT:
            return Manifest.read(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        expected = f"a folder that `paceline synth` wrote, with a readable {MANIFEST} ({error})"
        raise InvalidRequest("set", str(folder), expected) from error
    raise InvalidRequest("set", str(folder), f"a set of the format {FORMAT}")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step: a kill leaves the old manifest or the new one."""
    write_whole(folder / MANIFEST, json.dumps(manifest.as_json(), indent=1).encode() + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that its name never stands for half of it, not even after a power cut."""
    beside = path.with_name(path.name + ".tmp")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_shard(folder: Path, split: Split, index: int, rows: Sequence[TrainingRow]) -> Shard:
    """Write rows as SPLIT-INDEX.parquet. The caller adds the shard to the manifest."""
    parquet = parquet_module()
    import pyarrow as arrow

    names = [field.name for field in fields(TrainingRow)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    columns["spans"] = [[{"start": s, "end": e} for s, e in row.spans] for row in rows]
    sink = arrow.BufferOutputStream()
    table = arrow.Table.from_pydict(columns, schema=_schema(arrow))
    parquet.write_table(table, sink, compression="zstd")
    data = sink.getvalue().to_pybytes()
    name = f"{split}-{index:05d}.parquet"
    write_whole(folder / name, data)
    return Shard(
        file=name,
        split=split,
        rows=len(rows),
        tokens=sum(len(row.ids) for row in rows),
        answer_tokens=sum(row.answer_tokens for row in rows),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def read_rows(folder: Path, split: str) -> Iterator[TrainingRow]:
    """Yield the rows of a split, in the order they were written.

    Raises InvalidRequest (field `set`) where a shard is missing, or not what the manifest says.
    """
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
        # Without threads and without reading ahead: a thread of pyarrow that frees a buffer of
        # Python's while the process ends aborts it.
        file = parquet.ParquetFile(io.BytesIO(data), pre_buffer=False)
        table = file.read(use_threads=False)
        # The column is read as one array: token by token takes pyarrow longer.
        ids = table.column("ids").combine_chunks()
        tokens, ends = ids.values.to_numpy(), ids.offsets.to_numpy()
        for number, record in enumerate(table.drop_columns(["ids"]).to_pylist()):
            spans = tuple((span["start"], span["end"]) for span in record["spans"])
            said = tuple(tokens[ends[number] : ends[number + 1]].tolist())
            yield TrainingRow(**record | {"ids": said, "spans": spans})


def _schema(arrow: Any) -> Any:
    """Return the columns of a shard; `arrow` is the module pyarrow."""
    text = arrow.string()
    span = arrow.struct({"start": arrow.int32(), "end": arrow.int32()})
    return arrow.schema(
        {
            "ids": arrow.list_(arrow.int32()),
            "spans": arrow.list_(span),
            **dict.fromkeys(("source", "part", "language", "finish_reason"), text),
            "temperature": arrow.float64(),
            "seed": arrow.uint64(),
            **dict.fromkeys(("key", "prompt", "origin"), text),
        }
    )
