from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.kernels import build

HERE = Path(__file__).parent
# Read before any test forces another path.
PATHS = [*build.PATHS, *build.EMULATED]


@pytest.fixture(params=PATHS)
def kernel_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every kernel path that this machine can run, by the switch that users have."""
    try:
        build.load(request.param)
    except build.MissingHardware as error:
        pytest.skip(str(error))
    monkeypatch.setitem(os.environ, "PACELINE_KERNELS", request.param)
    build.load.cache_clear()
    yield request.param
    build.load.cache_clear()


@pytest.fixture
def native() -> str:
    """The path that runs here by default."""
    runs, what = build.available()
    if not runs:
        pytest.skip(what)
    return what


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path, marks=[] if path is None else pytest.mark.slow)
        for path in (None, *build.PATHS, *build.EMULATED)
    ],
    ids=str,
)
def ops(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """The operations compiled as the kernels are: for the path that runs here, the others slow."""
    try:
        path = build.load(request.param).path
    except build.BuildError as error:
        pytest.skip(str(error))
    flags = {**build.PATHS, **build.EMULATED}[path][1]
    target = tmp_path_factory.mktemp("ops") / "ops.so"
    command = [build.find_compiler(), *build.COMMON_FLAGS, build.NATIVE_FLAG, *flags]
    command += ["-I", str(build.NATIVE), "-shared", "-o", str(target)]
    command += [str(HERE / "single_ops.cpp")]
    subprocess.run(command, check=True, capture_output=True)
    yield ctypes.CDLL(str(target))
