"""Building the kernels: said why when it fails, one OpenMP runtime when it does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.core import ModelError
from paceline.kernels import build, ops, reference
from paceline.models.native_network import NativeNetwork

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
