"""SIGKILL at any moment of a start: the next one serves the right model and leaves nothing behind.

In a process of its own, which forks for every start.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_kill_at_every_change_of_the_disk_and_at_random_moments(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.models.kill_plan", str(tmp_path), "--random", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("all starts good") == 2
