"""Engines over a tiny random model, for each backend and dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.kernels import ops
from paceline.models.native_network import native_available
from tests.engine.oracle import Outcomes
from tests.engine.tiny import EngineFactory, tiny_config, tiny_model

NATIVE_RUNS, WHY_NOT = native_available(tiny_config())
# Eager bfloat16 on a CPU is slow. `make test` takes it only where bfloat16 would go untested.
EAGER = [pytest.mark.slow] if NATIVE_RUNS else []
BACKENDS = [
    pytest.param(("torch", "float32", "cpu"), id="torch-float32"),
    pytest.param(("torch", "bfloat16", "cpu"), id="torch-bfloat16", marks=EAGER),
    pytest.param(("native", "bfloat16", "cpu"), id="native-bfloat16"),
    pytest.param(("torch", "bfloat16", "cuda"), id="cuda-bfloat16", marks=pytest.mark.cuda),
    pytest.param(("torch", "float32", "cuda"), id="cuda-float32", marks=pytest.mark.cuda),
]


# Their cases are many, and the engine that they test is the same over each network.
LONG_STREAMS = (
    "test_grammar_streams", "test_quality", "test_streams", "test_tree_streams", "test_soak",
    "test_lineup",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave long eager streams, and eager requests that run alone, to `make test-all` where the
    native network runs: eager takes ten times as long, and the other tests run it too."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        is_eager = parameters.get("make_engine") == ("torch", "float32", "cpu")
        is_long = item.path.stem in LONG_STREAMS or parameters.get("together") == 1
        if NATIVE_RUNS and is_eager and is_long:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=BACKENDS)
def make_engine(request: pytest.FixtureRequest) -> EngineFactory:
    """Builds engines over the same tiny model, for each backend and dtype."""
    backend, dtype, device = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if backend == "native" and not NATIVE_RUNS:
        pytest.skip(WHY_NOT)

    def make(drafter: Any = None, **options: Any) -> Engine:
        fixed = {"backend": backend, "dtype": dtype, "device": device, "threads": 1}
        # Lengths that follow timings would make some tests draft on one machine and not on another.
        options = {"draft_policy": "fixed", **fixed, **options}
        config = EngineConfig(model="tiny", drafter=drafter, **options)
        return build_engine(config, tiny_model(dtype))

    make.backend = request.param
    return make


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    """Every keyed number walks through all its outcomes."""
    walker = Outcomes()
    monkeypatch.setattr(ops, "uniform", walker.uniform)
    monkeypatch.setattr(ops, "gumbel_argmax", walker.gumbel_argmax)
    return walker
