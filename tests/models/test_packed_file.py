"""Packed weights are read at the next start: the same bits, or they are packed again."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.cli import main
from paceline.engine import build
from paceline.engine.costs import Costs, starting_costs
from paceline.kernels import build as kernels
from paceline.models import packed_file
from paceline.models.loader import load_folder
from paceline.models.networks import build_network
from paceline.models.weights import SafetensorWeights
from paceline.server import run
from tests.engine.tiny import save_tiny
from tests.models.tiny import Cache, random_ids


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packed_file, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(packed_file, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "packed"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return save_tiny(tmp_path / "model")


def logits(folder: Path, **options: Any) -> torch.Tensor:
    network, _ = build_network(load_folder(folder, "it"), backend="native", **options)
    out = network.forward(Cache(network, 1, 40).batch([(0, 0, random_ids(40, 250))]))
    return out.logits.clone()


@pytest.fixture
def read_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tensors that were read from the model's files."""
    names: list[str] = []
    real = SafetensorWeights.__getitem__
    monkeypatch.setattr(
        SafetensorWeights, "__getitem__", lambda self, name: names.append(name) or real(self, name)
    )
    return names


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_second_start_reads_what_the_first_packed(
    quantize: str | None, tied: bool, packed: Path, tmp_path: Path, read_names: list[str]
) -> None:
    model = save_tiny(tmp_path, tie_word_embeddings=tied)
    first = logits(model, quantize=quantize)
    assert len(list(packed.iterdir())) == 1 and any("mlp" in name for name in read_names)
    read_names.clear()
    assert torch.equal(logits(model, quantize=quantize), first)
    assert not [name for name in read_names if name.endswith("proj.weight")]
    assert len(list(packed.iterdir())) == 1


def test_a_server_starts_before_its_weights_are_written(
    packed: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are timed without a disk that is busy, and the next start reads what was written."""
    while_timed = []

    def timed(source: Any) -> Costs:
        while_timed.append(list(packed.glob("*")))
        return starting_costs(source)

    monkeypatch.setattr(build, "starting_costs", timed)
    monkeypatch.setattr(run, "serve", lambda *arguments, **named: None)
    words = ["serve", str(model), "--backend", "native", "--kv-memory", "1MiB", "--port", "0"]
    for start in range(2):
        assert main(words) == 0
        wait_until_written()
        assert len(list(packed.iterdir())) == 1
        assert len(while_timed[start]) == start


def wait_until_written() -> None:
    for thread in threading.enumerate():
        if thread.name == packed_file.WRITER:
            thread.join(timeout=60)
            assert not thread.is_alive()


def test_nothing_is_written_for_a_start_that_failed(packed: Path, model: Path) -> None:
    with pytest.raises(RuntimeError, match="no room"), packed_file.writing_later():
        logits(model)
        raise RuntimeError("no room")
    wait_until_written()
    assert not packed.is_dir()
    with packed_file.writing_later():
        logits(model)
    wait_until_written()
    assert len(list(packed.iterdir())) == 1


def test_other_weights_or_another_recipe_are_packed_anew(packed: Path, model: Path) -> None:
    first = logits(model)
    logits(model, quantize="int8")
    assert len(list(packed.iterdir())) == 2
    file = model / "model.safetensors"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with open(file, "r+b") as opened:  # the same size and times, as a careful copy leaves them
        opened.seek(-4000, os.SEEK_END)
        opened.write(b"\x11" * 4000)
    os.utime(file, ns=times)
    assert not torch.equal(logits(model), first)
    assert len(list(packed.iterdir())) == 3


@pytest.mark.parametrize("damage", ["bit", "short", "header", "empty"])
def test_a_damaged_file_is_packed_again_and_one_line_says_so(
    damage: str, packed: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = logits(model)
    (file,) = packed.iterdir()
    data = bytearray(file.read_bytes())
    if damage == "bit":
        data[len(data) // 2] ^= 4
    elif damage == "header":
        data[10] ^= 1
    file.write_bytes(bytes(data[: {"short": -4096, "empty": 0}.get(damage, len(data))]))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(model), first)
    assert ["cannot be used" in record.message for record in caplog.records] == [True]
    caplog.clear()
    assert torch.equal(logits(model), first) and not caplog.records


@pytest.mark.parametrize("fault", ["full", "nearly full", "read-only"])
def test_without_a_place_for_them_starts_only_take_longer(
    fault: str, packed: Path, model: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if fault == "full":

        def fill(file: Any, header: bytes, parts: Any) -> None:
            file.write(header)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(packed_file, "_fill", fill)
    elif fault == "nearly full":
        usage = packed_file.shutil.disk_usage("/")
        monkeypatch.setattr(
            packed_file.shutil, "disk_usage", lambda path: usage._replace(free=100_000)
        )
    else:
        packed.parent.mkdir()
        packed.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        logits(model)
    (record,) = caplog.records
    assert "cannot be kept, and starts take longer" in record.message
    assert "PACELINE_CACHE" in record.message
    assert not packed.is_dir() or not list(packed.iterdir())


def test_those_used_longest_ago_make_room(
    packed: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits(model)
    logits(model, quantize="int8")
    old, recent = sorted(packed.iterdir(), key=lambda file: file.stat().st_mtime)
    os.utime(old, (1, 1))
    taken = old.stat().st_size + recent.stat().st_size
    disk = packed_file.shutil.disk_usage(packed)._replace(free=10 * taken)
    monkeypatch.setattr(packed_file.shutil, "disk_usage", lambda path: disk)
    monkeypatch.setattr(packed_file, "TOTAL_SHARE", 1.2 / 11)
    monkeypatch.setattr(packed_file, "_used", set())  # as of other processes
    (model / "model.safetensors").touch()
    logits(model)
    left = list(packed.iterdir())
    assert old not in left and recent in left and len(left) == 2


def test_a_drafters_weights_do_not_push_out_those_of_its_target(
    packed: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_file, "TOTAL_SHARE", 0)
    logits(model)
    logits(model, quantize="int8")
    assert len(list(packed.iterdir())) == 2


def test_a_file_that_another_process_removes_harms_nobody(
    packed: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed.mkdir(parents=True)
    (packed / "gone.bin").symlink_to(packed / "nowhere")  # as between listing it and looking at it
    logits(model)
    names = {file.name for file in packed.iterdir()}
    assert len(names) == 2 and "gone.bin" in names
    (own,) = names - {"gone.bin"}
    packed_file.DiskSpace(packed / own, (packed / own).stat().st_size).tidy()
    assert (packed / own).is_file()  # the entry that is replaced does not count


def test_nothing_is_removed_for_a_file_that_cannot_be_written(
    packed: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits(model)
    (first,) = packed.iterdir()
    monkeypatch.setattr(packed_file, "_used", set())

    def fill(file: Any, header: bytes, parts: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(packed_file, "_fill", fill)
    monkeypatch.setattr(packed_file, "TOTAL_SHARE", 0)
    logits(model, quantize="int8")
    assert first.is_file()


@pytest.mark.parametrize("file", ["forward.cpp", "vec.h", "tensors.py", "quantized.py"])
def test_other_code_packs_anew(
    file: str, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these decides about packed bytes: scales, rounding, order of joined matrices."""

    def name() -> str:
        packed_file._code_digest.cache_clear()
        return packed_file.PackedFile({"weights": []}, 1).path.name

    before, changed = name(), tmp_path / "changed"
    shutil.copytree(kernels.NATIVE, changed / "native")
    shutil.copytree(Path(packed_file.__file__).parent, changed / "models")
    monkeypatch.setattr(kernels, "NATIVE", changed / "native")
    monkeypatch.setattr(packed_file, "__file__", str(changed / "models" / "packed_file.py"))
    assert name() == before
    (found,) = changed.glob(f"*/{file}")
    found.write_text(found.read_text() + "\n")
    assert name() != before
    packed_file._code_digest.cache_clear()


def test_files_that_are_replaced_while_they_are_read_are_not_kept(
    packed: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_folder(model, "it")
    file = model / "model.safetensors"
    file.with_suffix(".new").write_bytes(file.read_bytes())
    os.replace(file.with_suffix(".new"), file)
    with caplog.at_level(logging.WARNING):
        build_network(loaded, backend="native")
    assert ["changed while they were read" in record.message for record in caplog.records] == [True]
    assert not packed.exists() or not list(packed.iterdir())
