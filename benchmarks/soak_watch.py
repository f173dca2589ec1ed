"""Watches a server from outside: its memory, its open files, and what /metrics says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from soak_answers import Problem

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float  # since the watch began
    rss: float  # MiB
    files: int
    gauges: dict[str, float]  # and counters, by name without its prefix, labels added up

    @property
    def in_flight(self) -> int:
        return int(self.gauges["num_requests_running"] + self.gauges["num_requests_waiting"])


@dataclass(slots=True)
class Watch:
    """Samples of the process `pid`, which serves at `url`. Linux only: it reads /proc."""

    url: str
    pid: int
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)

    async def sample(self) -> Sample:
        """Raises Problem when /metrics is not 200 or a counter went backwards."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False) as http:
            response = await http.get("/metrics")
        if response.status_code != 200:
            raise Problem(f"{response.status_code} from /metrics")
        taken = Sample(time.monotonic() - self.began, rss(self.pid), files(self.pid),
                       _read(response.text))  # fmt: skip
        if self.samples:
            before = self.samples[-1].gauges
            for name, value in taken.gauges.items():
                if name.endswith("_total") and value < before.get(name, 0):
                    raise Problem(f"{name} went from {before[name]} to {value}")
        return taken

    async def run(self, interval: float) -> None:
        """Samples until it is cancelled."""
        while True:
            self.samples.append(await self.sample())
            await asyncio.sleep(interval)

    async def until_idle(self, seconds: float) -> Sample:
        """The first sample with nothing in flight, or the last one in that time."""
        end = time.monotonic() + seconds
        while True:
            taken = await self.sample()
            if taken.in_flight == 0 or time.monotonic() > end:
                return taken
            await asyncio.sleep(0.1)


def rss(pid: int) -> float:
    """Resident memory in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def files(pid: int) -> int:
    """Open file descriptors, connections among them."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line that fits (x, y) best in least squares."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def _read(text: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.type in ("gauge", "counter"):
                name = sample.name.split(":")[-1]
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums
