"""Tests in parallel: each worker of pytest-xdist keeps to one core of its own.

The native kernels spin at barriers, so two engines on the same two cores would spin against each
other. On one core an engine takes one thread. Tests of teams of threads ask for theirs by number.

A worker takes one file after the other. The longest come first, so that no worker is alone with one
at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONGEST = [
    TESTS / name
    for name in (
        "autospec/loop/test_weights.py",
        "engines/test_doctor.py",
        "cli/test_endpoint.py",
        "web/test_calculator.py",
        "engine/test_distribution.py",
        "engines/test_audit_faults.py",
        "server/test_wire.py",
        "synth/test_endpoint.py",
        "autospec/scores/test_replay.py",
        "endpoint/test_replicas.py",
        "training/test_resuming.py",
        "fuzz/test_fuzz.py",
        "autospec/loop/test_loop.py",
    )
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [path for path in LONGEST if not path.is_file()]
    assert not missing, missing
    items.sort(key=lambda item: LONGEST.index(item.path) if item.path in LONGEST else len(LONGEST))


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture(autouse=True)
def priority_stays() -> Iterator[None]:
    """A process may not raise its priority again: tests behind one that lowers it would be slow."""
    if not hasattr(os, "getpriority"):
        yield
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.fixture(scope="session", autouse=True)
def few_steps_of_tiny_models_are_timed() -> None:
    """An engine times the steps of its model at its start. For a model without an identity, which
    no cache keeps a table of, few sizes will do, unless a test says how long that may take."""
    from paceline.engine import costs

    measure, whole = costs._measure, costs.BUDGET

    def measured(source: costs.CostSource) -> costs.Costs:
        if source.identity is not None or whole != costs.BUDGET:
            return measure(source)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(costs, "BUDGET", 0.1)
            return measure(source)

    costs._measure = measured
