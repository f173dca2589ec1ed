"""A disk that is full, gone or stuck stops learning, never serving."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.dataset.traces import folder as folder_module
from paceline.dataset.traces import writer as writer_module
from paceline.dataset.traces.reader import read_requests, read_tokens
from paceline.server.run import Server

from .conftest import eventually, listening
from .test_capture import metric
from .test_real_engine import TEXT, tiny_engine

Fault = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PAUSE", 0.001)
    monkeypatch.setattr(writer_module, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.02)


def answers(server: Server, count: int) -> list[list[int]]:
    """The token ids of some requests, all of which must be answered in full."""
    rng, told = random.Random(7), []
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        for seed in range(count):
            prompt = [rng.randrange(4, 250) for _ in range(12)]
            body = {**TEXT, "prompt": prompt, "max_tokens": 20, "temperature": 1, "seed": seed}
            answer = http.post("/v1/completions", json={**body, "return_token_ids": True})
            assert answer.status_code == 200, answer.text
            told.append(answer.json()["choices"][0]["token_ids"])
            assert len(told[-1]) == 20
    return told


@contextmanager
def a_file_in_its_place(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder)
    folder.write_text("not a folder")
    yield
    folder.unlink()


@contextmanager
def a_dead_link(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder)
    folder.symlink_to(folder.parent / "gone" / "away")
    (folder.parent / "gone").write_text("in the way")
    yield
    folder.unlink()


@contextmanager
def a_disk_that_fails(folder: Path) -> Iterator[None]:
    def fail(*_: object) -> None:
        raise OSError(5, os.strerror(5))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "write_whole", fail)
        patch.setattr(Path, "write_bytes", fail)
        yield


@contextmanager
def a_full_disk(folder: Path) -> Iterator[None]:
    """A real one, of 256 KiB, which says so when it is written to."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk may be mounted here")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer_module, "SPARE", 0)
            with (folder / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError):
                while True:
                    ballast.write(bytes(4096))
            yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "fault",
    [
        a_file_in_its_place,
        pytest.param(a_dead_link, marks=pytest.mark.slow),
        a_disk_that_fails,
        a_full_disk,
    ],
)
def test_a_fault_stops_the_capture_until_it_is_mended_and_no_answer(
    tmp_path: Path, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "traces"
    with listening(tiny_engine()) as server:
        plain = answers(server, 30)
    with listening(tiny_engine(), traces=str(folder), traces_tokens=True) as server:
        assert answers(server, 3) == plain[:3]
        eventually(lambda: metric(server, "paceline:traces_written_total") == 3)
        with fault(folder):
            assert answers(server, 1) == plain[:1]
            eventually(lambda: metric(server, "paceline:traces_capturing") == 0)
            before = metric(server, "paceline:traces_dropped_total")
            assert answers(server, 30) == plain
            assert metric(server, "paceline:traces_dropped_total") == before + 30
            assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
        eventually(lambda: metric(server, "paceline:traces_capturing") == 1)
        written = metric(server, "paceline:traces_written_total")
        assert answers(server, 2) == plain[:2]
        eventually(lambda: metric(server, "paceline:traces_written_total") >= written + 2)
    assert len(list(read_requests(folder))) >= 2
    assert caplog.text.count("nothing is captured") == 1, "said once"


def test_a_folder_that_is_deleted_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    with listening(tiny_engine(), traces=str(folder)) as server:
        answers(server, 2)
        eventually(lambda: metric(server, "paceline:traces_written_total") == 2)
        shutil.rmtree(folder)
        answers(server, 3)
        eventually(lambda: metric(server, "paceline:traces_written_total") == 5)
        assert metric(server, "paceline:traces_dropped_total") == 0
    assert len(list(read_requests(folder))) == 3


def test_a_disk_that_never_answers_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network disk whose server is gone: the write neither ends nor fails."""
    stuck, released = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        stuck.set()
        released.wait(60)

    monkeypatch.setattr(writer_module, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(writer_module, "MOST_WAITING", 20_000)
    try:
        with listening(tiny_engine()) as server:
            plain = answers(server, 40)
        with listening(tiny_engine(), traces=str(tmp_path / "traces")) as server:
            answers(server, 1)
            eventually(lambda: metric(server, "paceline:traces_written_total") == 1)
            monkeypatch.setattr(folder_module, "write_whole", wait)
            answers(server, 1)
            assert stuck.wait(20)
            assert answers(server, 40) == plain
            assert metric(server, "paceline:traces_dropped_total") > 0, "what waits is bounded"
    finally:
        released.set()


def test_a_fault_of_the_hook_costs_token_ids_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paceline_faulty_hook.py").write_text("def exit(*ids):\n    raise SystemExit(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings: dict[str, Any] = {"traces": str(tmp_path / "traces"), "traces_tokens": True}
    with listening(tiny_engine(), **settings, traces_redact="paceline_faulty_hook:exit") as server:
        assert len(answers(server, 3)) == 3
        eventually(lambda: metric(server, "paceline:traces_written_total") == 3)
        assert len(answers(server, 1)) == 1
        assert metric(server, "paceline:traces_failed_total") == 0
    folder = tmp_path / "traces"
    assert len(list(read_requests(folder))) == 4 and list(read_tokens(folder)) == []
