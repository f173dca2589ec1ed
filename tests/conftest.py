"""Tests in parallel: each worker of pytest-xdist keeps to one core of its own.

The native kernels spin at barriers, so two engines on the same two cores would spin against each
other. On one core an engine takes one thread. Tests of teams of threads ask for theirs by number.
"""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


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
