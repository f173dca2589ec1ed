"""Features that are passed through a folder which holds a part of them at a time."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core import InvalidRequest
from paceline.training.config import GIB, TrainConfig
from paceline.training.feature_folder import ASKED, FILES
from paceline.training.passing import Passing
from paceline.training.run import prepare, train, write_features
from paceline.training.workers import Workers
from tests.training.foreign import write_random_set
from tests.training.runs import Run, alike, config, drafter_of, losses, quiet

STEPS = 60  # of 4 texts: more than an epoch of ROWS
ROWS = 204
READER = {"features_wait": True, "features_passing": True}
WRITER = {"features_only": True, "features_passing": True}


def settings(target: Path, trainset: Path, tmp_path: Path, out: str, **changes: Any) -> TrainConfig:
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0, "eval_texts": 4}
    more = {"steps": STEPS, "eval_every": 20, **folder, **changes}
    return config(target, trainset, tmp_path / out, **more)


def files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "features").glob(FILES))


def part(target: Path, trainset: Path, tmp_path: Path, **options: Any) -> float:
    """Return a bound in GiB of about a quarter of the features, and of what is judged on top."""
    other = {"features_folder": str(tmp_path / "sizes"), **options}
    alone = settings(target, trainset, tmp_path, "sizes", **other)
    trainer = prepare(alone, Workers("cpu"))
    folder, texts = trainer.target.folder, trainer.texts_to_read()
    assert folder is not None
    judged = sum(map(folder.bytes_of, trainer.data.judged()))
    return (judged + sum(map(folder.bytes_of, texts)) / 4) / GIB


@contextmanager
def most_bytes(tmp_path: Path) -> Iterator[list[int]]:
    """Collect the sizes that the files have together, again and again."""
    sizes, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            total = 0
            for path in files(tmp_path):
                try:
                    total += path.stat().st_size
                except FileNotFoundError:
                    continue
            sizes.append(total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield sizes
    finally:
        over.set()
        watcher.join()


SOFT = pytest.param({"mix": {"kl": 1.0}, "soft_tokens": 4}, marks=pytest.mark.slow)


@pytest.mark.parametrize("options", [{}, SOFT], ids=str)
def test_a_part_of_the_disk_is_enough(options, target, tmp_path):
    """The drafter equals that of a run with all features, and both sides end."""
    trainset = write_random_set(tmp_path / "set", target, rows=ROWS)
    most = part(target, trainset, tmp_path, **options)
    said: list[str] = []
    writer = threading.Thread(
        target=write_features,
        daemon=True,
        args=(settings(target, trainset, tmp_path, "writer", **WRITER, **options), said.append),
    )
    bound = most * GIB
    reading = settings(
        target, trainset, tmp_path, "run", features_folder_gb=most, **READER, **options
    )
    with most_bytes(tmp_path) as sizes:
        writer.start()
        drafter = drafter_of(reading)
        writer.join(timeout=60)
    assert not writer.is_alive()
    assert files(tmp_path) == [], "not even what the writer had at hand"
    assert 0.5 * bound < max(sizes) < 1.1 * bound  # files come and go while it is counted
    written = int(said[-1].split()[3])
    assert written > ROWS, "texts of the second epoch are computed again"
    whole = settings(target, trainset, tmp_path, "whole", features_folder=None, **options)
    theirs = load_file(drafter_of(whole) / "model.safetensors")
    assert alike(load_file(drafter / "model.safetensors"), theirs)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_both_sides_may_be_killed_and_come_back(target, tmp_path):
    trainset = write_random_set(tmp_path / "set", target, rows=ROWS)
    most = part(target, trainset, tmp_path)
    common = "--steps", str(STEPS), "--eval-texts", "4", "--features-passing"
    read = *common, "--features-wait", "--features-folder-gb", str(most)
    write = *common, "--features-only"
    state = tmp_path / "run" / "state.pt"

    def saved() -> int:
        return int(torch.load(state, weights_only=True)["step"])

    with (
        Run(target, trainset, tmp_path, *write) as first,
        Run(target, trainset, tmp_path, *read) as run,
    ):
        first.until(lambda line: "wrote features of 6" in line)
        first.send(signal.SIGKILL)
        first.rest()
        run.until(lambda line: line.startswith("waiting for "))
        with Run(target, trainset, tmp_path, *write) as second:
            before = saved()
            deadline = time.monotonic() + 60
            while saved() < before + 8 and time.monotonic() < deadline:
                time.sleep(0.01)
            run.send(signal.SIGKILL)
            run.rest()
            assert before + 8 <= saved() < STEPS
            with Run(target, trainset, tmp_path, *read) as third:
                assert "going on at step" in third.until(lambda line: "going on" in line)
                third.rest()
                second.rest()
            codes = third.process.returncode, second.process.returncode
    assert codes == (0, 0)
    whole = settings(
        target, trainset, tmp_path, "whole", features_folder=None, eval_every=4, save_every=4
    )
    theirs = load_file(drafter_of(whole) / "model.safetensors")
    assert alike(load_file(tmp_path / "run" / "drafter" / "model.safetensors"), theirs)


def test_a_damaged_file_is_written_again(target, trainset, tmp_path):
    reading = prepare(settings(target, trainset, tmp_path, "run", **READER), Workers("cpu"))
    folder = reading.target.folder
    text = reading.texts_to_read()[0]
    folder.ask_for([text])
    folder.say_asking(True)
    path = folder._path(folder.name(text))
    path.parent.mkdir()
    path.write_bytes(b"no features")
    writer = threading.Thread(
        target=write_features,
        daemon=True,
        args=(settings(target, trainset, tmp_path, "run", **WRITER), quiet),
    )
    writer.start()
    try:
        assert folder.read(text) is not None
    finally:
        folder.say_asking(False)
        writer.join(timeout=60)


def test_a_run_shorter_than_an_epoch_asks_for_its_own_texts(target, tmp_path):
    trainset = write_random_set(tmp_path / "set", target, rows=ROWS)
    said: list[str] = []
    changes = {"steps": 10, "eval_every": 5}
    writing = settings(target, trainset, tmp_path, "w", **WRITER, **changes)
    writer = threading.Thread(target=write_features, daemon=True, args=(writing, said.append))
    writer.start()
    train(settings(target, trainset, tmp_path, "run", **READER, **changes), quiet)
    writer.join(timeout=60)
    assert not writer.is_alive()
    judged = len(list(prepare(writing, Workers("cpu")).data.judged()))
    assert int(said[-1].split()[3]) == 10 * 4 + judged


@pytest.mark.slow
def test_texts_in_memory_are_not_asked_for(target, tmp_path):
    """The writer computes each text once if the run keeps all of them in memory."""
    trainset = write_random_set(tmp_path / "set", target, rows=ROWS)
    most = part(target, trainset, tmp_path)
    said: list[str] = []
    writer = threading.Thread(
        target=write_features,
        daemon=True,
        args=(settings(target, trainset, tmp_path, "w", **WRITER), said.append),
    )
    changes = {"features_gb": 1.0, "features_folder_gb": most, "steps": 2 * STEPS}
    writer.start()
    train(settings(target, trainset, tmp_path, "run", **READER, **changes), quiet)
    writer.join(timeout=60)
    assert not writer.is_alive()
    assert int(said[-1].split()[3]) == ROWS


def test_a_folder_with_features_to_keep_is_refused(target, trainset, tmp_path):
    kept = settings(target, trainset, tmp_path, "kept", features_only=True)
    write_features(kept, quiet)
    before = set(files(tmp_path))
    for mode in (READER, WRITER):
        passing = settings(target, trainset, tmp_path, "run", **mode)
        with pytest.raises(InvalidRequest, match=f"features_folder: .*{len(before)} texts are"):
            prepare(passing, Workers("cpu"))
    assert set(files(tmp_path)) == before


def test_a_folder_that_holds_too_little_is_refused(target, trainset, tmp_path):
    """The error names the room that is needed, and a run with that room succeeds."""
    little = {"features_folder_gb": 1e-6, **READER}
    with pytest.raises(
        InvalidRequest, match="features_folder_gb: got 1e-06; expected room"
    ) as told:
        train(settings(target, trainset, tmp_path, "run", **little), quiet)
    needed = float(str(told.value).split()[-1])
    enough = {"features_folder_gb": needed, **READER, "steps": 8}
    writing = settings(target, trainset, tmp_path, "writer", **WRITER, steps=8)
    writer = threading.Thread(target=write_features, daemon=True, args=(writing, quiet))
    writer.start()
    assert train(settings(target, trainset, tmp_path, "run", **enough), quiet)
    writer.join(timeout=60)
    assert not writer.is_alive()


def test_a_folder_through_which_features_pass_keeps_none(target, trainset, tmp_path):
    """A later run would remove what another one keeps there."""
    prepare(settings(target, trainset, tmp_path, "run", **READER), Workers("cpu"))
    for mode in ({}, {"features_only": True}, {"features_wait": True}):
        with pytest.raises(InvalidRequest, match=r"features_folder: .* features_passing beside it"):
            prepare(settings(target, trainset, tmp_path, "other", **mode), Workers("cpu"))


def test_a_slow_run_does_not_end_its_writer(target, trainset, tmp_path):
    """The writer waits while the run shows life, and ends with an error when the run is gone."""
    reading = prepare(settings(target, trainset, tmp_path, "run", **READER), Workers("cpu"))
    passing = Passing(reading.target.folder, 1.0, reading.data, reading.order, STEPS)
    passing.ask(0, ())
    caught: list[InvalidRequest] = []

    def write() -> None:
        minutes = {"features_wait_minutes": 0.1, **WRITER}  # 6 s
        try:
            write_features(settings(target, trainset, tmp_path, "writer", **minutes), quiet)
        except InvalidRequest as error:
            caught.append(error)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        writer.join(timeout=20)
        assert writer.is_alive()
    finally:
        passing.close()  # as a run that is killed, which does not say that it is over
    writer.join(timeout=30)
    assert len(caught) == 1 and "no sign of life" in str(caught[0])


def test_a_second_run_is_refused(target, trainset, tmp_path):
    """Each would remove what the other waits for."""
    common = "--features-wait", "--features-passing"
    with Run(target, trainset, tmp_path, "--steps", "4", *common) as first:
        first.until(lambda line: line.startswith("waiting for "))
        second = settings(target, trainset, tmp_path, "second", **READER)
        with pytest.raises(InvalidRequest) as caught:
            train(second, quiet)
    assert f"features_folder: got '{tmp_path / 'features'}'" in str(caught.value)
    assert f"process {first.process.pid}" in str(caught.value)


def test_a_writer_of_other_texts_is_refused(target, trainset, tmp_path):
    other = write_random_set(tmp_path / "other" / "set", target, rows=40)
    reading = prepare(settings(target, other, tmp_path, "run", **READER), Workers("cpu"))
    reading.target.folder.ask_for(reading.texts_to_read())
    reading.target.folder.say_asking(True)
    with pytest.raises(InvalidRequest, match=r"asks for texts of these settings; \d+ of \d+ are"):
        write_features(settings(target, trainset, tmp_path, "run", **WRITER), quiet)


def test_a_writer_that_nobody_asks_ends(target, trainset, tmp_path):
    writing = settings(target, trainset, tmp_path, "run", features_wait_minutes=0.005, **WRITER)
    with pytest.raises(InvalidRequest, match=r"no sign of life for 0\.005 minutes"):
        write_features(writing, quiet)


@pytest.mark.parametrize("line", ["{", json.dumps({"ids": [1]}), "[]"])
def test_a_list_that_no_run_wrote_is_refused(line, target, trainset, tmp_path):
    writing = settings(target, trainset, tmp_path, "run", **WRITER)
    prepare(writing, Workers("cpu")).target.folder.say_asking(True)
    (tmp_path / "features" / ASKED).write_text(line + "\n")
    with pytest.raises(InvalidRequest, match=f"a folder whose {ASKED} a run wrote"):
        write_features(writing, quiet)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"features_passing": True}, "features_passing: .* features_wait or features_only beside"),
        (
            {**WRITER, "features_folder_gb": 1.0},
            "features_folder_gb: .* no features_only beside features_passing",
        ),
    ],
)
def test_settings_without_effect_are_refused(changes, match, tmp_path):
    with pytest.raises(InvalidRequest, match=match):
        settings(tmp_path, tmp_path, tmp_path, "run", **changes)
