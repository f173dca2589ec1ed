"""Hostile requests to the real server in a child process: it lives and answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.findings import Bounds, report, save
from tests.fuzz.run import ROOT, fuzz, paceline_on

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it reads /proc")
# Tests share their machine: the bar for gaps is that of `make fuzz` there, and of a stall here.
SHARED = Bounds(gap=2.5, wait=15.0)


def fuzzed(tmp_path: Path, seed: int, bodies: int) -> None:
    findings = fuzz(paceline_on(tmp_path), seed, range(bodies), workers=8, most_deaths=1)
    told = report(findings, SHARED)
    failures = findings.failures(SHARED)
    if failures:
        save(findings, ROOT / "build" / "fuzz", told)
    assert not failures, told
    assert findings.statuses["200"] > bodies / 10, told
    assert findings.statuses["400"] > bodies / 10, told


def test_hostile_requests_harm_nobody(tmp_path: Path) -> None:
    fuzzed(tmp_path, seed=1, bodies=300)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_hostile_requests_harm_nobody(tmp_path: Path) -> None:
    fuzzed(tmp_path, seed=2, bodies=5000)
