"""A run that begins before its features are there waits for the process that writes them."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core import InvalidRequest
from paceline.training.config import TrainConfig
from paceline.training.data import Text
from paceline.training.feature_folder import FeatureFolder
from paceline.training.run import prepare, train, write_features
from paceline.training.workers import Workers
from tests.training.foreign import write_random_set
from tests.training.runs import (
    Run,
    alike,
    change_features,
    config,
    drafter_of,
    losses,
    quiet,
    texts_said,
)

SOFT = {"mix": {"kl": 1.0}, "soft_tokens": 4}
WRITER, TRAINER = "--features-only", "--features-wait"


def settings(target: Path, trainset: Path, tmp_path: Path, out: str, **changes: Any) -> TrainConfig:
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    return config(target, trainset, tmp_path / out, **{"steps": 8, **folder, **changes})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "features").glob("*/*.safetensors"))


def test_a_run_waits_for_a_writer_that_is_killed_and_comes_back(target, tmp_path):
    """It says what it waits for, and its drafter is that of a run over the complete folder."""
    trainset = write_random_set(tmp_path / "set", target, rows=204)
    steps = "--steps", "50"
    with Run(target, trainset, tmp_path, *steps, TRAINER) as run:
        waits = run.until(lambda line: line.startswith("waiting for "))
        assert "0 texts are there, nothing new for " in waits and "after 15 minutes" in waits
        assert not files(tmp_path)
        with Run(target, trainset, tmp_path, *steps, WRITER) as first:
            first.until(lambda line: 60 < texts_said(line) < 150)
            first.send(signal.SIGKILL)
            first.rest()
        there = len(files(tmp_path))
        assert 60 < there < 204
        waits = run.until(lambda line: f": {there} texts are there" in line)
        missing = Path(waits.split()[2].rstrip(","))
        assert not missing.exists()
        with Run(target, trainset, tmp_path, *steps, WRITER) as second:
            second.rest()
            said = run.rest()
        assert (run.process.returncode, second.process.returncode) == (0, 0)
    assert said[-1].startswith("the best drafter is in ") and missing.exists()
    complete = settings(target, trainset, tmp_path, "complete", steps=50, features_wait=True)
    drafter = weights(drafter_of(complete))
    assert alike(weights(tmp_path / "run" / "drafter"), drafter)
    # Negative control: what the files say decides.
    for file in files(tmp_path):
        change_features(file)
    changed = settings(target, trainset, tmp_path, "changed", steps=50, features_wait=True)
    assert not alike(weights(drafter_of(changed)), drafter)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_beside_its_writer(target, tmp_path):
    """It is killed while it waits for features and again in a step behind a save, goes on at its
    last save, and its drafter is that of a run that nothing disturbed."""
    trainset = write_random_set(tmp_path / "set", target, rows=204)
    state, steps = tmp_path / "run" / "state.pt", ("--steps", "50")
    undisturbed = settings(target, trainset, tmp_path, "undisturbed", steps=50, features_wait=True)

    def killed(run: Run) -> int:
        """Kill it, and return the step that it saved last."""
        run.send(signal.SIGKILL)
        run.rest()
        assert run.process.returncode == -signal.SIGKILL
        return int(torch.load(state, weights_only=True)["step"])

    with Run(target, trainset, tmp_path, *steps, WRITER) as writer:
        writer.until(lambda line: 60 < texts_said(line) < 150)
        writer.send(signal.SIGSTOP)
        there = len(files(tmp_path))
        with Run(target, trainset, tmp_path, *steps, TRAINER) as first:
            first.until(lambda line: f": {there} texts are there" in line)
            waited = killed(first)
        with Run(target, trainset, tmp_path, *steps, TRAINER) as second:
            second.until(lambda line: line.startswith(f"going on at step {waited} of 50"))
            writer.send(signal.SIGCONT)
            before = state.stat().st_mtime_ns
            deadline = time.monotonic() + 60
            while state.stat().st_mtime_ns == before and time.monotonic() < deadline:
                time.sleep(0.002)
            stepped = killed(second)
        assert 0 < waited < stepped < 50
        with Run(target, trainset, tmp_path, *steps, TRAINER) as third:
            third.until(lambda line: line.startswith(f"going on at step {stepped} of 50"))
            third.rest()
            writer.rest()
        assert (third.process.returncode, writer.process.returncode) == (0, 0)
    assert losses(tmp_path / "run") == losses(whole := drafter_of(undisturbed).parent)
    assert alike(weights(tmp_path / "run" / "drafter"), weights(whole / "drafter"))


@pytest.mark.parametrize(
    "options",
    [{}, SOFT, {"target_engine": "transformers"}, {"dtype": "bfloat16"}, {"quantize": "int8"}],
    ids=str,
)
def test_the_drafter_is_that_of_a_run_with_the_target(options, target, trainset, tmp_path):
    """Its embedding and head come from the checkpoint, without the network."""
    write_features(settings(target, trainset, tmp_path, "writer", **options), quiet)
    waiting = settings(target, trainset, tmp_path, "waiting", features_wait=True, **options)
    beside = settings(target, trainset, tmp_path, "beside", **options)
    assert alike(weights(drafter_of(waiting)), weights(drafter_of(beside)))
    trainer = prepare(waiting, Workers("cpu"))
    if "quantize" not in options:  # else our engine makes the head
        with pytest.raises(NotImplementedError):
            trainer.target._compute(trainer.data.train[:1])


def test_a_writer_that_is_gone_ends_the_run(target, trainset, tmp_path):
    said: list[str] = []
    waiting = settings(
        target, trainset, tmp_path, "run", features_wait=True, features_wait_minutes=0.01
    )
    with pytest.raises(InvalidRequest) as caught:
        train(waiting, said.append)
    assert f"features_folder: got '{tmp_path / 'features'}'; expected " in str(caught.value)
    wanted = ".safetensors in it, the features of a text of "
    assert wanted in str(caught.value) and "nothing new came for 0.01 minutes" in str(caught.value)
    assert "features_only in place of features_wait" in str(caught.value)
    # The same command goes on when there is a writer again.
    write_features(settings(target, trainset, tmp_path, "run"), quiet)
    assert train(waiting, quiet).drafter is not None


IMPATIENT = {"features_wait": True, "features_wait_minutes": 0.02}


def waited_for(config: TrainConfig) -> tuple[FeatureFolder, Text]:
    """Return the folder of a run that waits, and the first text that it reads."""
    waiting = prepare(config, Workers("cpu"))
    assert waiting.target.folder is not None
    return waiting.target.folder, waiting.texts_to_read()[0]


def test_news_of_other_texts_prolong_the_wait(target, trainset, tmp_path):
    """A writer at work on other texts is not gone, however long it takes."""
    write_features(settings(target, trainset, tmp_path, "run"), quiet)
    folder, text = waited_for(settings(target, trainset, tmp_path, "run", **IMPATIENT))
    wanted = folder._path(folder.name(text))
    kept, over = wanted.read_bytes(), threading.Event()
    wanted.unlink()

    def write_others() -> None:
        for number in range(8):  # 3 s, where 1.2 s without news would end the wait
            over.wait(0.4)
            (wanted.parent / f"other-{number}").touch()
        wanted.write_bytes(kept)

    writer = threading.Thread(target=write_others)
    writer.start()
    try:
        assert folder.read(text) is not None
    finally:
        over.set()
        writer.join()


def test_a_damaged_file_is_waited_for(target, trainset, tmp_path, caplog):
    write_features(settings(target, trainset, tmp_path, "run"), quiet)
    folder, text = waited_for(settings(target, trainset, tmp_path, "run", **IMPATIENT))
    damaged = folder._path(folder.name(text))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(InvalidRequest, match=r"expected .* or a writer at work"):
        folder.read(text)
    assert caplog.text.count("cannot be used") == 2  # by the first look, and by the wait
    write_features(settings(target, trainset, tmp_path, "run"), quiet)
    assert folder.read(text) is not None


def test_a_folder_that_another_process_begins_is_new(target, trainset, tmp_path):
    """Writer and run may begin at the same moment."""
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / ".features.json.0123.unfinished").touch()
    assert prepare(settings(target, trainset, tmp_path, "run"), Workers("cpu")).target.folder


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"features_folder": None}, "features_wait: got true; expected features_folder beside it"),
        ({"features_only": True}, "features_only: got true; expected no features_wait beside it"),
        ({"features_folder_gb": 1.0}, r"features_folder_gb: got 1\.0; expected no features_wait"),
        ({"shard_target": True, "features_gb": None},
         "shard_target: got true; expected no features_wait beside it: a run that waits computes"),
        ({"target_engine": "vllm", "target_python": "python"},
         "target_python: got 'python'; expected no features_wait beside it: a run that waits"),
        ({"target_engine": "vllm", "target_devices": 2},
         "target_devices: got 2; expected no features_wait beside it: a run that waits starts"),
        ({"target_engine": "sglang", "target_url": "http://sglang"},
         "target_url: got 'http://sglang'; expected no features_wait beside it: a run that waits"),
        ({"features_wait": False, "features_wait_minutes": 1.0},
         r"features_wait_minutes: got 1\.0; expected features_wait beside it, or both"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_run_that_waits_cannot_do_is_refused(changes, match, tmp_path):
    with pytest.raises(InvalidRequest, match=match):
        settings(tmp_path, tmp_path, tmp_path, "run", **{"features_wait": True, **changes})
