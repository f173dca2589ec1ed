"""Helpers of tests that ask whether a child process outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's end"
)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def outlives_parent(parent_code: str, scratch: Path) -> bool:
    """Run Python code that starts the program sys.argv[1] as a child, kill it once the child runs,
    and return whether the child is still there after some seconds; it is killed then."""
    told, program = scratch / "pid", scratch / "python"
    program.write_text(f"#!/bin/sh\necho $$ > {told}.new; mv {told}.new {told}; exec sleep 600\n")
    program.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", parent_code, str(program)]) as parent:
        while not told.exists():
            assert parent.poll() is None
            time.sleep(0.01)
        parent.kill()
    child = int(told.read_text())
    for _ in range(500):
        if not is_alive(child):
            return False
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return True
