"""Features on disk of a target whose layers are spread over two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.training.run import prepare
from paceline.training.workers import Workers
from tests.training.foreign import save_foreign, write_random_set
from tests.training.runs import alike, arguments, change_features, config
from tests.training.test_quantised_targets import SERVED, checkpoints

STEPS = 8
# Three texts of each set are evaluated, so that the shares of two processes differ.
SETTINGS = "--mix", "ce=0.5,kl=0.5", "--eval-texts", "3", "--steps", str(STEPS)


def spread(target: Path, trainset: Path, tmp_path: Path, out: str, *options: str) -> str:
    """Train with two processes; return what they said."""
    launch = "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"
    command = [
        sys.executable, *launch, "-m", "paceline.cli", "train", str(trainset),
        "--model", str(target), "--out", str(tmp_path / out), "--shard-target",
        "--features-folder", str(tmp_path / "features"), *SETTINGS, *options,
        *arguments("features_gb"),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def drafter(tmp_path: Path, out: str) -> dict[str, torch.Tensor]:
    return load_file(tmp_path / out / "drafter" / "model.safetensors")


@pytest.mark.slow
def test_a_run_reads_what_another_wrote_and_computes_the_rest(target, trainset, tmp_path):
    """Also where one process lacks texts and the other does not: neither waits for ever."""
    folder = tmp_path / "features"
    said = spread(target, trainset, tmp_path, "writer", "--features-only")
    settings = config(
        target, trainset, tmp_path / "alone", steps=STEPS, mix={"ce": 0.5, "kl": 0.5},
        eval_texts=3, target_engine="transformers", features_folder=str(folder),
    )  # fmt: skip
    trainer = prepare(settings, Workers("cpu"))
    texts, kept = trainer.texts_to_read(), trainer.target.folder
    assert f"features of {len(texts)} of {len(texts)} texts" in said
    paths = [kept._path(kept.name(text)) for text in texts]
    # What both wrote is what one process computes.
    for text, seen in zip(texts, trainer.target._compute(texts), strict=True):
        written = kept.read(text)
        assert torch.equal(written.features, seen.features)
        assert torch.equal(written.likely, seen.likely)
    times = [path.stat().st_mtime_ns for path in paths]
    spread(target, trainset, tmp_path, "first")
    assert [path.stat().st_mtime_ns for path in paths] == times  # nothing was computed again
    whole = [path.read_bytes() for path in paths]
    steps = [text for text in texts if text in trainer.data.train]
    gone = [paths[texts.index(text)] for text in steps[:5]]  # of the first steps, unevenly
    gone += paths[:3:2]  # both are of the first process in the first evaluation
    for path in gone:
        path.unlink()
    spread(target, trainset, tmp_path, "second")
    assert [path.read_bytes() for path in paths] == whole
    assert alike(drafter(tmp_path, "first"), drafter(tmp_path, "second"))
    # Negative control: what the files say decides.
    for path in paths:
        change_features(path)
    spread(target, trainset, tmp_path, "changed")
    assert not alike(drafter(tmp_path, "first"), drafter(tmp_path, "changed"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen3_moe", None),
        ("qwen3_moe", "fp8"),
        ("qwen3_moe", "int4"),
        ("gpt_oss", "mxfp4"),
        (SERVED, "int8"),
    ],
)
def test_experts_and_quantised_weights_are_spread(family, kind, tmp_path):
    """Two processes write what one computes, and a run learns from it."""
    if kind is None:
        (model := tmp_path / "plain").mkdir()
        save_foreign(model, family)
    else:
        _, model, _ = checkpoints(tmp_path, kind, family)
    dataset, folder = write_random_set(tmp_path / "set", model), tmp_path / "features"
    spread(model, dataset, tmp_path, "writer", "--features-only")
    settings = config(
        model, dataset, tmp_path / "alone", steps=STEPS, mix={"ce": 0.5, "kl": 0.5},
        eval_texts=3, target_engine="transformers", features_folder=str(folder),
    )  # fmt: skip
    trainer = prepare(settings, Workers("cpu"))
    texts = trainer.texts_to_read()
    for text, seen in zip(texts, trainer.target._compute(texts), strict=True):
        written = trainer.target.folder.read(text)
        torch.testing.assert_close(written.features, seen.features)
    spread(model, dataset, tmp_path, "run")
    assert drafter(tmp_path, "run")
