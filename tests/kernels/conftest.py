from __future__ import annotations

import os

import pytest

from paceline.kernels import build

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
