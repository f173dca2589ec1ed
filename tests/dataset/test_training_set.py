"""A set on disk comes back as it was written, or is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import (
    Manifest,
    TrainingRow,
    read_manifest,
    read_rows,
    write_manifest,
    write_shard,
)

ROW = TrainingRow(
    ids=(1, 2, 3, 2**31 - 1),
    spans=((1, 2), (3, 4)),
    source="chat#18",
    part="replay",
    language="de",
    finish_reason="stop",
    temperature=0.7,
    seed=2**64 - 1,
    key="00ff.0",
)


def written(folder: Path) -> Manifest:
    rows = [ROW, replace(ROW, ids=(9,), spans=(), source="käse#1")]
    shard = write_shard(folder, "train", 0, rows)
    manifest = Manifest(target={"name": "t"}, app={}, shards=[shard])
    write_manifest(folder, manifest)
    return manifest


def test_rows_and_manifest_come_back(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    assert read_manifest(tmp_path) == manifest
    first, second = read_rows(tmp_path, "train")
    assert first == ROW and second.spans == () and second.source == "käse#1"
    assert list(read_rows(tmp_path, "held_out")) == []
    (shard,) = manifest.shards
    assert (shard.rows, shard.tokens, shard.answer_tokens) == (2, 5, 2)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = written(tmp_path / "a"), written(tmp_path / "b")
    assert one.digest == two.digest == read_manifest(tmp_path / "a").digest
    two.counts["rows"] = 1
    assert one.digest != two.digest


def test_what_is_no_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="paceline synth"):
        read_manifest(tmp_path)
    written(tmp_path)
    path = tmp_path / "manifest.json"
    given = json.loads(path.read_text())
    for wrong, message in [
        ({**given, "format": "paceline-set/2"}, "a set of the format paceline-set/1"),
        ({**given, "colour": 1}, "readable manifest.json"),
        ([], "readable manifest.json"),
    ]:
        path.write_text(json.dumps(wrong))
        with pytest.raises(InvalidRequest, match=message):
            read_manifest(tmp_path)


def test_a_shard_that_is_missing_or_changed_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    shard = tmp_path / "train-00000.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(InvalidRequest, match="changed or damaged"):
        list(read_rows(tmp_path, "train"))
    shard.unlink()
    with pytest.raises(InvalidRequest, match="a readable shard"):
        list(read_rows(tmp_path, "train"))


def test_reading_leaves_no_thread_behind(tmp_path: Path) -> None:
    """A thread of pyarrow's pools may abort a process that ends."""
    written(tmp_path)
    script = f"""
import os
from pathlib import Path
import pyarrow.parquet
from paceline.dataset.training_set import read_rows
before = len(os.listdir("/proc/self/task"))
rows = list(read_rows(Path({str(tmp_path)!r}), "train"))
assert rows
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "0\n"
