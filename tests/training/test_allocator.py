"""Freed memory stays with the process, in one of its own: the switch cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

import pytest

# How much of 200 MB is still there after it was freed.
MEASURE = """
import resource, sys, torch
from paceline.training.workers import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
torch.ones(1000)
before = resident()
block = torch.ones(50_000_000)
del block
print((resident() - before) / 200e6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's switch")
def test_large_tensors_are_kept_for_the_next_step():
    kept, given = (
        float(subprocess.check_output([sys.executable, "-c", MEASURE, how])) for how in ("keep", "")
    )
    assert kept > 0.9 and given < 0.1
