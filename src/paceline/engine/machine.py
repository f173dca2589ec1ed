"""Cores and memory that this process may use, a container's limits included."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from paceline.core import InvalidRequest
from paceline.core.priority import step_back

T = TypeVar("T")
SHORT_TURN = 2e-4  # seconds that background work may hold the interpreter's lock at a time
CGROUP, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# A controller ("" in version 2), its files, and the lines that count file cache: what can be
# dropped, and what was used lately.
LIMITS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def use_threads(asked: int | None) -> None:
    """Have torch and the kernels run on `asked` threads (default: one for each usable core).

    Raises InvalidRequest for more threads than cores: some would wait for a core while the others
    wait for them, and a step would take many times as long.
    """
    cores = usable_cores()
    if asked is not None and asked > cores:
        may = "this process may use 1 core" if cores == 1 else f"this process may use {cores} cores"
        right = "1" if cores == 1 else f"1 to {cores}"
        raise InvalidRequest("threads", asked, f"{right}: {may} (CPU affinity, container limits)")
    torch.set_num_threads(asked or cores)


def in_background(work: Callable[[], T]) -> T:
    """Do work beside a model that is served, and return its result: on one core, after all other
    threads, and with the interpreter's lock for a moment at a time.

    It has a thread of its own, since a thread may not raise its priority again.
    """
    with ThreadPoolExecutor(1, "paceline-background") as pool:
        return pool.submit(_after_all_others, work).result()


def _after_all_others(work: Callable[[], T]) -> T:
    step_back()
    threads, turn = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(1)
    sys.setswitchinterval(SHORT_TURN)
    try:
        return work()
    finally:
        sys.setswitchinterval(turn)
        torch.set_num_threads(threads)


def usable_cores(cgroup: Path = CGROUP, groups: Path = OWN_GROUPS) -> int:
    """Cores that threads may run on: affinity, and the container's share of time, rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    shares = [cores or 1]
    for folder in _folders("", cgroup, groups):
        quota, _, period = _first_line(folder / "cpu.max").partition(" ")
        shares += _share(quota, period)
    for folder in _folders("cpu", cgroup, groups):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        shares += _share(*(_first_line(folder / name) for name in names))
    return max(1, min(shares))


def _share(quota: str, period: str) -> list[int]:
    """Return the number of cores that a CPU quota allows, as a list; empty without a quota."""
    limited = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return [math.ceil(int(quota) / int(period))] if limited else []


def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor as it calls itself; what the platform says where it doesn't."""
    return _value(info, "model name") or platform.processor() or platform.machine()


def free_memory(device: str) -> int:
    """Bytes of memory that `device`, cpu or cuda, has free."""
    return int(torch.cuda.mem_get_info()[0]) if device == "cuda" else available_memory()


def whole_memory(device: str) -> int:
    """Bytes of memory that `device`, cpu or cuda, has for all processes together."""
    return int(torch.cuda.mem_get_info()[1]) if device == "cuda" else total_memory()


def available_memory(cgroup: Path = CGROUP, groups: Path = OWN_GROUPS) -> int:
    """Bytes that can still be had without swapping."""
    kilobytes = _value(Path("/proc/meminfo"), "MemAvailable").split()
    free = int(kilobytes[0]) * 1024 if kilobytes else _physical_memory() // 2
    for controller, limit, used, droppable in LIMITS:
        for folder in _folders(controller, cgroup, groups):
            most, taken = _first_line(folder / limit), _first_line(folder / used)
            if most.isdecimal() and taken.isdecimal():
                cache = _counter(folder / "memory.stat", droppable)
                free = min(free, int(most) - max(0, int(taken) - cache))
    return max(0, free)


def total_memory(cgroup: Path = CGROUP, groups: Path = OWN_GROUPS) -> int:
    """Bytes that all processes here may have together."""
    total = _physical_memory()
    for controller, limit, *_ in LIMITS:
        for folder in _folders(controller, cgroup, groups):
            most = _first_line(folder / limit)
            total = min(total, int(most)) if most.isdecimal() else total
    return total


def _folders(controller: str, cgroup: Path, groups: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it.

    In a container the path that the kernel tells may not exist; the limits then lie at the top.
    """
    top = cgroup / controller
    yield top
    for line in _text(groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            folder = top
            for name in Path(path.lstrip("/")).parts:
                folder = folder / name
                yield folder


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _value(file: Path, name: str) -> str:
    """The value of the first line `name: value` in a file, or nothing."""
    lines = (line.partition(":") for line in _text(file).splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _counter(file: Path, name: str) -> int:
    """The number of the line `name number` in a file, or 0."""
    lines = (line.split() for line in _text(file).splitlines())
    return next((int(words[1]) for words in lines if words[:1] == [name]), 0)


def _first_line(file: Path) -> str:
    return _text(file).split("\n", 1)[0].strip()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
