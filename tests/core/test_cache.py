"""Cache entries: verified at each use, written whole or not at all."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.core import CacheError
from paceline.core import cache as cache_module
from paceline.core.cache import cache_dir, cached_folder, load_json, save_json
from paceline.core.checksums import MANIFEST, PIECE_BYTES, damage, write_manifest

from .cache_entries import CONTENT, Maker, check_content
from .cache_entries import entry as entry


def zeros(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(bytes(100_000))


def one_bit(folder: Path) -> None:
    content = bytearray(CONTENT["weights.bin"])
    content[70_000] ^= 1
    (folder / "weights.bin").write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "zeros": (zeros, "the content of weights.bin has changed"),
    "one bit": (one_bit, "the content of weights.bin has changed"),
    "truncated": (
        lambda folder: os.truncate(folder / "weights.bin", 50_000),
        "weights.bin has 50000 bytes instead of 100000",
    ),
    "empty": (lambda folder: os.truncate(folder / "config.json", 0), "config.json has 0 bytes"),
    "missing": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "missing below": (
        lambda folder: (folder / "more/template.txt").unlink(),
        "more/template.txt is missing",
    ),
    "extra": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
        "model.safetensors.index.json does not belong there",
    ),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "it has no checksums"),
    "manifest of zeros": (
        lambda folder: (folder / MANIFEST).write_bytes(bytes(300)),
        f"{MANIFEST} is not readable",
    ),
    "manifest of something else": (
        lambda folder: (folder / MANIFEST).write_text("[1]"),
        f"{MANIFEST} is not readable",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_made_again_and_one_line_says_so(
    name: str, entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, said = DAMAGES[name]
    maker = Maker()
    cached_folder(entry, maker)
    spoil(entry)
    with caplog.at_level(logging.INFO):
        assert cached_folder(entry, maker) == entry
    check_content(entry)
    assert maker.calls == 2
    (record,) = caplog.records
    assert str(entry) in record.getMessage() and said in record.getMessage()
    assert "making it again" in record.getMessage()


def test_an_intact_entry_is_made_once_and_nothing_is_said(
    entry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker = Maker()
    for _ in range(3):
        cached_folder(entry, maker)
    (entry / ".nfs0001").write_bytes(b"")  # some file systems add hidden files
    cached_folder(entry, maker)
    assert maker.calls == 1 and not caplog.records


def test_large_entries_are_hashed_when_touched_and_once_a_week(
    entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(cache_module, "LEAST_REMEMBERED", 0)
    hashed: list[Path] = []
    real = cache_module.damage
    monkeypatch.setattr(
        cache_module, "damage", lambda folder: hashed.append(folder) or real(folder)
    )
    maker = Maker()
    for _ in range(3):
        cached_folder(entry, maker)
    assert len(hashed) == 2  # before it was made, and the first time that it was used
    file = next(path for path in entry.rglob("*") if path.is_file() and path.name != MANIFEST)
    times = file.stat()
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    with open(file, "r+b") as opened:
        opened.write(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # a write that hides its time
    cached_folder(entry, maker)
    assert maker.calls == 2
    check_content(entry)
    cached_folder(entry, maker)
    seen = len(hashed)
    later = time.time() + cache_module.REMEMBERED_SECONDS + 1
    monkeypatch.setattr(cache_module.time, "time", lambda: later)
    cached_folder(entry, maker)
    cached_folder(entry, maker)
    assert len(hashed) == seen + 1


def test_a_file_where_an_entry_should_be_is_replaced(entry: Path) -> None:
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b"in the way")
    check_content(cached_folder(entry, Maker()))


def test_a_piece_in_the_middle_of_a_large_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with open(path, "wb") as file:
        file.truncate(2 * PIECE_BYTES + 5)
    write_manifest(tmp_path)
    assert damage(tmp_path) is None
    with open(path, "r+b") as file:
        file.seek(PIECE_BYTES + 12_345_678)
        file.write(b"!")
    assert damage(tmp_path) == "the content of large.bin has changed"


def test_a_failed_fill_leaves_nothing_and_keeps_a_damaged_entry(entry: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise ValueError("no network")

    with pytest.raises(ValueError, match="no network"):
        cached_folder(entry, fail)
    assert os.listdir(entry.parent) == []
    cached_folder(entry, Maker())
    (entry / MANIFEST).unlink()  # as an older version made it: another version may still use it
    with pytest.raises(ValueError, match="no network"):
        cached_folder(entry, fail)
    assert os.listdir(entry.parent) == [entry.name]
    assert (entry / "weights.bin").read_bytes() == CONTENT["weights.bin"]


def test_every_file_is_synced_before_the_rename_and_the_folder_after_it(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        events.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_rename(source: Any, target: Any) -> None:
        events.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    cached_folder(entry, Maker())
    renamed = events.index(("rename", str(entry)))
    before = {path for kind, path in events[:renamed] if kind == "fsync"}
    (unfinished,) = {path for path in before if path.endswith(cache_module.UNFINISHED)}
    wanted = {*CONTENT, "more", MANIFEST}
    assert before == {unfinished, *(f"{unfinished}/{name}" for name in wanted)}
    assert ("fsync", str(entry.parent)) in events[renamed:]
    events.clear()
    table = entry.parent.parent / "costs" / "t.json"
    save_json(table, {"a": 1})
    kinds = [(kind, Path(path).name) for kind, path in events]
    (first, _), second, third = kinds
    assert first == "fsync" and second == ("rename", "t.json") and third == ("fsync", "costs")


# -- JSON entries ---------------------------------------------------------------------------------


def test_a_json_entry_reads_back_and_its_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "costs" / "t.json"
    value = {"seconds": [0.1, 2.5e-7], "by": {"a": {"x": 1}}}
    save_json(path, value)
    assert load_json(path) == value
    assert os.listdir(path.parent) == ["t.json"]
    text = path.read_text()
    for spoilt in (text.replace("0.1", "0.2"), text[:-9], "", "\0" * 50, "[]", '{"seconds": [1]}'):
        path.write_text(spoilt)
        with pytest.raises(ValueError, match=r"checksum|JSON|Expecting|delimiter"):
            load_json(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_json(path)


# -- a cache that cannot be written ---------------------------------------------------------------


def test_a_cache_below_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file" / "models" / "m", tmp_path / "file" / "below" / "models" / "m"):
        with pytest.raises(CacheError, match=r"file.* cannot be used .*PACELINE_CACHE") as caught:
            cached_folder(path, Maker())
        assert "\n" not in str(caught.value)
        with pytest.raises(CacheError, match="PACELINE_CACHE"):
            save_json(path, {})


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_a_cache_that_refuses_to_be_written_serves_what_it_holds(
    code: int, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_folder(entry, Maker())
    (entry.parent / f".x.12345678{cache_module.UNFINISHED}").mkdir()
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    maker = Maker()
    assert cached_folder(entry, maker) == entry and maker.calls == 0
    with pytest.raises(CacheError) as caught:
        cached_folder(entry.with_name("other"), maker)
    said = str(caught.value)
    assert str(entry.parent.parent) in said and os.strerror(code) in said
    assert ("free space" in said) == (code in (errno.ENOSPC, errno.EDQUOT))


def test_a_mount_that_is_read_only(entry: Path, tmp_path: Path) -> None:
    """The real thing, where this user may mount: root is stopped by no permission bits."""
    cached_folder(entry, Maker())
    script = (
        "import sys; from pathlib import Path; from paceline.core.cache import cached_folder\n"
        "def fill(folder): raise SystemExit('filled')\n"
        "print(cached_folder(Path(sys.argv[1]), fill))\n"
        "try: cached_folder(Path(sys.argv[1] + '2'), fill)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    cache = entry.parent.parent
    mount = f"mount --bind -o ro {cache} {cache} && mount -o remount,ro,bind {cache}"
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts for this user")
    command += [sys.executable, "-c", script, str(entry)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    served, refused = done.stdout.splitlines()
    assert served == str(entry)
    assert refused.startswith("CacheError") and "Read-only file system" in refused


def test_a_cache_that_others_own_is_not_called_damaged(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_folder(entry, Maker())
    real = open

    def refuse(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path).endswith("weights.bin"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr("paceline.core.checksums.open", refuse, raising=False)
    with pytest.raises(CacheError, match="Permission denied"):
        cached_folder(entry, Maker())


def test_without_a_home_folder_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "~no-such-user/cache")
    with pytest.raises(CacheError, match="set PACELINE_CACHE"):
        cache_dir()
