"""The folder of a set: full, of another making, in use, damaged."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.dataset import training_set as dataset
from paceline.dataset.training_set import read_manifest, read_rows
from paceline.synth.folder import CannotWrite, check_set, open_set

from .sets import Killed, Parts, content, dying, fresh, run
from .tiny import made


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = made(tmp_path, target)
    run(parts, tmp_path / "whole")
    whole, written = dataset.write_whole, []

    def full(path: Path, data: bytes) -> None:
        written.append(path.name)
        if "00001" in path.name:
            path.with_name(path.name + ".tmp").write_bytes(data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(dataset, "write_whole", full)
        with pytest.raises(CannotWrite, match=r"No space left on device\. Every finished shard"):
            run(parts, tmp_path / "full")
    assert len(list(read_rows(tmp_path / "full", "train"))) > 5
    assert not list((tmp_path / "full").glob("*.tmp"))
    run(parts, tmp_path / "full")
    assert content(tmp_path / "whole") == content(tmp_path / "full")


def test_what_was_begun_otherwise_is_refused(target: Path, tmp_path: Path) -> None:
    run(made(tmp_path, target), tmp_path / "set")

    def refused(parts: Parts, answers: str = "fake") -> str:
        with pytest.raises(InvalidRequest) as caught:
            open_set(tmp_path / "set", fresh(parts, answers), parts[0])
        assert caught.value.field == "out"
        return str(caught.value)

    assert "app: system changed" in refused(made(tmp_path, target, system="Be long."))
    assert "target: answers changed" in refused(made(tmp_path, target), "engine: float32")
    other = made(tmp_path, target)
    other[2].target.identity["weights_sha256"] = "0" * 64
    assert "target: weights_sha256 changed" in refused(other)
    folder = tmp_path / "edited"
    folder.mkdir()
    changed = made(folder, target)
    (folder / "task.jsonl").write_text('{"prompt": "something else"}\n')
    parts = made(tmp_path, target)
    app, sources, asker = parts
    sources[0] = type(sources[0])(sources[0].spec, "MIT", changed[1][0].prompts[:3])
    assert "content of the sources" in refused((app, sources, asker))
    manifest = open_set(tmp_path / "set", fresh(changed, "other"), changed[0], restart=True)
    assert manifest.shards == [] and [p.name for p in (tmp_path / "set").iterdir()] == [
        "manifest.json"
    ]


def killed_before(patched: pytest.MonkeyPatch, change: int) -> None:
    """Kill the process before file number `change` is replaced or removed."""
    left = iter(range(change))

    def dying(function: Callable[..., None]) -> Callable[..., None]:
        def changes(*given: Any, **named: Any) -> None:
            if next(left, None) is None:
                raise Killed
            function(*given, **named)

        return changes

    patched.setattr(os, "replace", dying(os.replace))
    patched.setattr(Path, "unlink", dying(Path.unlink))


def test_a_restart_that_is_killed_leaves_the_old_set_or_the_new_one(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart may be killed before it writes or removes any file: the set still resumes."""
    old, new = made(tmp_path, target, system="Be long.", size={"rows": 70}), made(tmp_path, target)
    run(old, tmp_path / "old")
    run(new, tmp_path / "new")
    before, after = content(tmp_path / "old"), content(tmp_path / "new")
    for changes in range(len(before)):  # those of files: one is replaced, the others are removed
        resumed, again = (tmp_path / f"{name}-{changes}" for name in ("resumed", "again"))
        for folder in (resumed, again):
            shutil.copytree(tmp_path / "old", folder)
            with monkeypatch.context() as patched, pytest.raises(Killed):
                killed_before(patched, changes)
                open_set(folder, fresh(new), new[0], restart=True)
        parts, expected = (new, after) if read_manifest(resumed).counts == {} else (old, before)
        run(parts, resumed)
        assert content(resumed) == expected, changes
        run(new, again, restart=True)
        assert content(again) == after, changes


def test_a_set_that_is_killed_before_its_first_manifest_can_be_begun(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, out = made(tmp_path, target), tmp_path / "set"
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_before(patched, 0)
        open_set(out, fresh(parts), parts[0])
    assert list(content(out)) == ["manifest.json.tmp"]
    assert open_set(out, fresh(parts), parts[0]).counts == {}
    assert list(content(out)) == ["manifest.json"]


def test_shards_that_no_manifest_names_are_removed_when_a_run_goes_on(
    target: Path, tmp_path: Path
) -> None:
    parts, out = made(tmp_path, target), tmp_path / "set"
    run(parts, out)
    before = content(out)
    for name in ("train-00099.parquet", "held_out-00000.parquet.tmp", "train-mine.parquet"):
        (out / name).write_bytes(b"rows")
    open_set(out, fresh(parts), parts[0])
    assert content(out).keys() == before.keys() | {"train-mine.parquet"}


def test_a_folder_with_something_else_is_refused_untouched(target: Path, tmp_path: Path) -> None:
    parts, out = made(tmp_path, target), tmp_path / "mine"
    out.mkdir()
    (out / "train-00000.parquet").write_text("precious")
    for restart in (False, True):
        with pytest.raises(InvalidRequest, match="a new or empty folder"):
            open_set(out, fresh(parts), parts[0], restart=restart)
    assert content(out) == {"train-00000.parquet": b"precious"}
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="a folder, not a file"):
        check_set(tmp_path / "file", fresh(parts), parts[0])


def test_a_target_may_lie_elsewhere(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target)
    run(parts, tmp_path / "set")
    parts[2].target.identity["name"] = "moved"
    assert open_set(tmp_path / "set", fresh(parts), parts[0]).counts["rows"] == 40


def test_too_little_room_is_refused_before_anything_is_made(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target, size={"rows": 10**12})
    with pytest.raises(InvalidRequest, match="MiB free for what is planned") as caught:
        check_set(tmp_path / "set", fresh(parts), parts[0])
    assert caught.value.field == "out"


def test_a_damaged_shard_is_not_gone_on_with(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target, size={"rows": 70})
    with pytest.raises(Killed):
        run(parts, tmp_path / "set", dying(60))
    shard = tmp_path / "set" / "train-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(InvalidRequest, match="changed or damaged"):
        run(parts, tmp_path / "set")
