"""Cores and memory that this process may use, a container's limits included."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
LIMITS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),  # version 1
)


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores that threads may run on: affinity, and the container's share of time, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _first_line(cgroup / "cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        return max(1, min(cores or 1, math.ceil(int(quota) / int(period))))
    return cores or 1


def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor as it calls itself; what the platform says where it doesn't."""
    return _value(info, "model name") or platform.processor() or platform.machine()


def available_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that can still be had without swapping."""
    kilobytes = _value(Path("/proc/meminfo"), "MemAvailable").split()
    free = int(kilobytes[0]) * 1024 if kilobytes else _physical_memory() // 2
    for limit, used in LIMITS:
        most, taken = _first_line(cgroup / limit), _first_line(cgroup / used)
        if most.isdecimal() and taken.isdecimal():
            free = min(free, max(0, int(most) - int(taken)))
    return free


def total_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that all processes here may have together."""
    most = [_first_line(cgroup / limit) for limit, _ in LIMITS]
    return min([_physical_memory(), *(int(limit) for limit in most if limit.isdecimal())])


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _value(file: Path, name: str) -> str:
    """The value of the first line `name: value` in a file, or nothing."""
    try:
        lines = (line.partition(":") for line in file.read_text().splitlines())
        return next((value.strip() for key, _, value in lines if key.strip() == name), "")
    except OSError:
        return ""


def _first_line(file: Path) -> str:
    try:
        return file.read_text().split("\n", 1)[0].strip()
    except OSError:
        return ""
