"""Building the kernels: said why when it fails, one OpenMP runtime when it does not."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from paceline.core import ModelError
from paceline.kernels import build, ops, reference
from paceline.models.native_network import NativeNetwork

from .stand_in import StandInCompiler
from .tiny import CONFIGS, bf16_weights


@pytest.fixture(autouse=True)
def _forget(native: str) -> Iterator[None]:
    build.load.cache_clear()
    ops._library.cache_clear()
    yield
    build.load.cache_clear()
    ops._library.cache_clear()


def test_without_a_compiler_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    runs, why = build.available()
    assert not runs
    assert "no C++ compiler" in why
    with pytest.raises(ModelError, match=r"no C\+\+ compiler"):
        NativeNetwork(CONFIGS["llama"], bf16_weights(CONFIGS["llama"]), 64)
    noise = ops.gumbel_noise(100, 1, choice=0, position=0)
    assert torch.equal(noise, reference.gumbel_noise(100, 1, choice=0, position=0))


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'fatal error: out of ink' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert build.available() == (False, f"{compiler} failed: fatal error: out of ink")


def test_an_unknown_path_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_KERNELS", "sse9")
    runs, why = build.available()
    assert not runs
    assert "'sse9'" in why
    assert "portable" in why


def test_no_second_openmp_runtime_comes_in() -> None:
    code = (
        "import torch; from paceline.kernels import build; build.load();"
        "maps = open('/proc/self/maps').read().split();"
        "print(len({m for m in maps if 'libgomp' in m or 'libiomp' in m or 'libomp' in m}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.slow
def test_two_processes_may_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    code = "from paceline.kernels import build; print(build.available()[0])"
    command = [sys.executable, "-c", code]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [job.communicate()[0].strip() for job in jobs] == ["True", "True"]
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def zeros(library: Path) -> None:
    library.write_bytes(bytes(library.stat().st_size))


def half(library: Path) -> None:
    library.write_bytes(library.read_bytes()[: library.stat().st_size // 2])


def empty(library: Path) -> None:
    library.write_bytes(b"")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInCompiler:
    stand_in = StandInCompiler(tmp_path)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(stand_in.path))
    monkeypatch.delenv("PACELINE_KERNELS", raising=False)
    return stand_in


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "damage", [pytest.param(empty, marks=SLOW), half, pytest.param(zeros, marks=SLOW)]
)
def test_a_damaged_library_is_compiled_again(
    damage: Callable[[Path], None], compiler: StandInCompiler, tmp_path: Path
) -> None:
    """In processes of their own: a library cut in half ends the process that loads it."""
    code = "from paceline.kernels import build; print(build.load().path)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""
    (library,) = (tmp_path / "cache" / "kernels").rglob("*.so")
    content = library.read_bytes()
    damage(library)
    for restart in (True, False):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "portable"), done.stderr
        assert ("is damaged" in done.stderr) == restart and "Traceback" not in done.stderr
    assert library.read_bytes() == content and compiler.links == 2
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 1


def test_without_a_cache_to_write_the_kernels_are_compiled_for_the_process(
    compiler: StandInCompiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        assert build.load().path == "portable"
    (record,) = caplog.records
    assert str(tmp_path / "cache") in record.getMessage()
    assert "PACELINE_CACHE" in record.getMessage()
    assert compiler.links == 1


def test_a_disk_that_fills_up_while_compiling_is_named(
    compiler: StandInCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = compiler.path.read_text().replace(
        "cp ", "echo 'x.s: Fatal error: cannot write x.o: No space left on device' >&2; exit 1; cp "
    )
    compiler.path.write_text(script)
    runs, why = build.available()
    assert not runs and "No space left on device" in why


def test_a_library_that_cannot_be_loaded_is_a_reason_not_a_traceback(
    compiler: StandInCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> ctypes.CDLL:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(build.ctypes, "CDLL", refuse)
    runs, why = build.available()
    assert not runs and "failed to map segment" in why
