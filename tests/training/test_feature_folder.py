"""Features on disk: read in place of the target, by later runs and by others at the same time."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core import InvalidRequest
from paceline.training.run import prepare, train
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers
from tests.training.foreign import write_random_set
from tests.training.runs import Run, arguments, config, drafter_of, losses, quiet, texts_said

SOFT = {"mix": {"kl": 1.0}, "soft_tokens": 4}


def reader(target: Path, trainset: Path, tmp_path: Path, **changes: Any) -> Trainer:
    """A run that keeps no features in memory."""
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    return prepare(config(target, trainset, tmp_path / "run", steps=1, **folder, **changes),
                   Workers(changes.get("device", "cpu")))  # fmt: skip


def read(trainer: Trainer) -> int:
    """Read every text; return the tokens that the target computed for it."""
    before = trainer.target.computed_tokens
    trainer.target.read_all(trainer.data.train)
    return trainer.target.computed_tokens - before


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "features").glob("*/*.safetensors"))


@pytest.mark.parametrize("engine", ["paceline", "transformers"])
def test_a_later_run_computes_nothing_and_trains_the_same_drafter(
    engine, target, trainset, tmp_path
):
    """The first run computes all, the second reads all, the third has no folder."""
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    folder |= {"target_engine": engine} if engine == "transformers" else {}
    plain = {key: value for key, value in folder.items() if key != "features_folder"}
    runs = {"first": folder, "second": folder, "none": plain}
    for name, options in runs.items():
        train(config(target, trainset, tmp_path / name, steps=8, **SOFT, **options), quiet)
    weights = [load_file(tmp_path / name / "drafter" / "model.safetensors") for name in runs]
    for key in weights[0]:
        assert torch.equal(weights[0][key], weights[1][key]), key
        assert torch.equal(weights[0][key], weights[2][key]), key
    made = [(tmp_path / name / "drafter" / "provenance.json").read_text() for name in runs]
    assert made[0] == made[1] == made[2]  # no path of this machine
    assert losses(tmp_path / "first") == losses(tmp_path / "second") == losses(tmp_path / "none")
    again = reader(target, trainset, tmp_path, **SOFT, **{k: v for k, v in folder.items()
                   if k == "target_engine"})  # fmt: skip
    assert read(again) == 0 and len(files(tmp_path)) > 16  # held out texts are there too


def test_what_is_read_ahead_is_what_is_asked_for(target, trainset, tmp_path):
    read(reader(target, trainset, tmp_path))
    later = reader(target, trainset, tmp_path)
    texts = later.data.train
    later.target.expect(texts[:4])
    later.target.expect(texts[2:6])  # nobody asked for the first two
    assert later.target.folder is not None and len(later.target.folder._coming) == 4
    fresh = reader(target, trainset, tmp_path / "other")
    for text in texts:
        assert torch.equal(later.target.read(text).features, fresh.target.read(text).features)
    assert later.target.computed_tokens == 0 and not later.target.folder._coming


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_what_is_read_ahead_is_copied_from_pinned_memory(target, trainset, tmp_path):
    first = reader(target, trainset, tmp_path, device="cuda")
    computed = first.target.read_all(first.data.train)
    later = reader(target, trainset, tmp_path, device="cuda")
    assert later.target.folder is not None
    text = later.data.train[0]
    stored = later.target.folder.read(text)
    assert stored is not None and stored.features.is_pinned()
    later.target.expect(later.data.train)
    for one, other in zip(later.target.read_all(later.data.train), computed, strict=True):
        assert one.features.is_cuda and torch.equal(one.features, other.features)


@pytest.mark.parametrize("damage", ["cut", "bits", "other_text"])
def test_a_damaged_file_is_told_and_computed_again(damage, target, trainset, tmp_path, caplog):
    first = reader(target, trainset, tmp_path)
    read(first)
    one, other = files(tmp_path)[:2]
    whole = one.read_bytes()
    if damage == "cut":
        one.write_bytes(whole[: len(whole) // 2])
    elif damage == "bits":
        tensors = load_file(one)
        tensors["features"][0, 0] += 1
        save_file(tensors, one)
    else:
        one.write_bytes(other.read_bytes())
    with caplog.at_level(logging.WARNING):
        computed = read(reader(target, trainset, tmp_path))
    assert 0 < computed < 64 and str(one) in caplog.text and "must read it again" in caplog.text
    assert one.read_bytes() == whole
    assert read(reader(target, trainset, tmp_path)) == 0


def test_the_folder_takes_no_more_than_it_may(target, trainset, tmp_path):
    read(reader(target, trainset, tmp_path / "all"))
    half = sum(file.stat().st_size for file in files(tmp_path / "all")) / 2
    bounded = {"features_folder_gb": half / (1 << 30)}
    first = read(reader(target, trainset, tmp_path, **bounded))
    kept = sum(file.stat().st_size for file in files(tmp_path))
    assert 0.8 * half < kept <= half
    again = read(reader(target, trainset, tmp_path, **bounded))
    assert 0.3 * first < again < 0.7 * first
    assert sum(file.stat().st_size for file in files(tmp_path)) <= half


@pytest.mark.parametrize(
    "change, told",
    [
        ({"taps": 3}, "layers [1, 2, 3]; this one has [1, 2]"),
        ({"dtype": "bfloat16"}, "numbers 'bfloat16'; this one has 'float32'"),
        ({"quantize": "int8"}, "quantize 'int8'; this one has None"),
        ({"target_engine": "transformers"}, "engine 'transformers'; this one has 'paceline'"),
        (SOFT, "soft_tokens 4; this one has 0"),
    ],
    ids=["layers", "numbers", "quantize", "engine", "soft_tokens"],
)
def test_features_of_another_kind_are_refused_by_name(change, told, target, trainset, tmp_path):
    reader(target, trainset, tmp_path)
    with pytest.raises(InvalidRequest, match="features_folder: got ") as caught:
        reader(target, trainset, tmp_path, **change)
    assert told in str(caught.value)


def test_a_folder_of_something_else_is_refused(target, trainset, tmp_path):
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "thesis.tex").touch()
    with pytest.raises(InvalidRequest, match=r"expected a new folder, or one with features\.json"):
        reader(target, trainset, tmp_path)
    (tmp_path / "features" / "features.json").write_text('{"format": "paceline-features/9"}')
    with pytest.raises(InvalidRequest, match=r"features_folder\.format: got 'paceline-features/9'"):
        reader(target, trainset, tmp_path)


def test_a_full_disk_ends_the_keeping_and_not_the_run(
    target, trainset, tmp_path, monkeypatch, caplog
):
    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paceline.training.feature_folder.save_tensors", full)
    trainer = reader(target, trainset, tmp_path)
    settings = config(target, trainset, tmp_path / "plain", steps=1, features_gb=0.0)
    plain = prepare(settings, Workers("cpu"))
    computed = [read(trainer), read(trainer)]
    assert computed == [read(plain), read(plain)] and min(computed) > 0  # as without a folder
    assert caplog.text.count("keeps no more features") == 1 and "No space left" in caplog.text
    assert [path.name for path in (tmp_path / "features").rglob("*") if path.is_file()] == [
        "features.json"
    ]


def test_a_killed_writer_leaves_whole_texts(target, trainset, tmp_path):
    command = [
        sys.executable, "-m", "paceline", "train", str(trainset), "--out", str(tmp_path / "run"),
        "--model", str(target), "--features-folder", str(tmp_path / "features"), "--steps", "500",
        *arguments(),
    ]  # fmt: skip
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ})
    try:
        deadline = time.monotonic() + 60
        # The first eight are only evaluated.
        while len(files(tmp_path)) < 12 and time.monotonic() < deadline:
            assert run.poll() is None
            time.sleep(0.001)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    written = len(files(tmp_path))
    assert written >= 12
    later = reader(target, trainset, tmp_path)
    everything = sum(len(text) for text in later.data.train)
    assert read(later) < everything
    assert len(files(tmp_path)) >= max(written, len(later.data.train))


def test_a_writer_is_killed_and_comes_back_while_a_run_reads_its_folder(target, tmp_path, caplog):
    """The texts that the writer told are there and whole, and the drafter equals that of a run by
    itself."""
    trainset = write_random_set(tmp_path / "set", target, rows=604)
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    everything = config(target, trainset, tmp_path / "run", steps=150, **folder)
    writer = "--steps", "150", "--features-only"
    with (
        Run(target, trainset, tmp_path, "--steps", "60") as run,
        Run(target, trainset, tmp_path, *writer) as first,
    ):
        first.until(lambda line: texts_said(line) > 300)  # the run reads the first 244
        first.send(signal.SIGSTOP)
        run.until(lambda line: line.startswith("step 0"))
        first.send(signal.SIGCONT)
        last = first.until(lambda line: texts_said(line) > 0)
        first.send(signal.SIGKILL)
        run.send(signal.SIGSTOP)  # until there is a writer again
        said = max(map(texts_said, [last, *first.rest()]))
        assert first.process.returncode == -signal.SIGKILL and 300 < said < 604
        checked = prepare(everything, Workers("cpu"))
        texts, kept = checked.texts_to_read(), checked.target.folder
        assert len(texts) == 604 and kept is not None
        assert all(kept.read(text) is not None for text in texts[:said])
        times = {path: path.stat().st_mtime_ns for path in files(tmp_path)}
        with Run(target, trainset, tmp_path, *writer) as second:
            alone = config(target, trainset, tmp_path / "alone", steps=60)
            whole = load_file(drafter_of(alone) / "model.safetensors")
            second.until(lambda line: texts_said(line) > 0)
            run.send(signal.SIGCONT)
            run.rest()
            assert texts_said(second.rest()[-1]) == 604
            assert (run.process.returncode, second.process.returncode) == (0, 0)
    assert all(kept.read(text) is not None for text in texts) and not caplog.records
    only_of_writers = [kept._path(kept.name(text)) for text in texts[244:said]]
    assert all(path.stat().st_mtime_ns == times[path] for path in only_of_writers)
    beside = load_file(tmp_path / "run" / "drafter" / "model.safetensors")
    assert all(torch.equal(beside[name], whole[name]) for name in whole)
