"""The cost of a training job beside the server for those who are served, by how it steps back.

    python benchmarks/beside_training.py MODEL [--rounds 12] [--at-once 2]

`paceline serve` and a process that multiplies matrices on all cores, as training does, share this
machine. The process has a session of its own, as a job has, and stands still or runs in one of
these ways, in turns of changing order: `nice 19`; the same with its session's priority, which Linux
looks at first; and besides only where nobody else wants a core (SCHED_IDLE). Requests come in pairs
with pauses between them, as beside a server that is not full.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness import machine, table
from streams import over_http, texts

from paceline.bench.load.server_process import ServerProcess
from paceline.bench.turns import ratio_interval

START_SECONDS, PAUSE, TOKENS = 120.0, 0.2, 64
WORK = "import torch\na = torch.randn(768, 768)\nwhile True: torch.mm(a, a)"
WAYS = ("alone", "nice 19", "and of its session", "and SCHED_IDLE")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Job:
    """A process that computes only between resume() and pause()."""

    way: str
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK], preexec_fn=self._step_back, start_new_session=True
        )
        time.sleep(3.0)  # its imports
        self.pause()

    def _step_back(self) -> None:
        os.nice(19)
        if self.way != "nice 19":
            Path("/proc/self/autogroup").write_text("19")
        if self.way == "and SCHED_IDLE":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    @property
    def cpu_seconds(self) -> float:
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / TICKS


@dataclass
class Turns:
    """Measurements of one way, a number a turn."""

    tpot: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)  # that the job had


def turn(port: int, model: str, job: Job | None, at_once: int, number: int, into: Turns) -> None:
    asked, begun = texts(), time.perf_counter()
    before = 0.0 if job is None else job.cpu_seconds
    if job is not None:
        job.resume()
    tpot, ttft = [], []
    for index in range(4):
        some = [asked[(number * 8 + index * at_once + i) % len(asked)] for i in range(at_once)]
        streamed = over_http(port, model, some, TOKENS)
        tpot.append(streamed.pooled_tpot)
        ttft.append(sum(each[0] - streamed.start for each in streamed.arrivals) / at_once)
        time.sleep(PAUSE)
    if job is not None:
        job.pause()
        into.cores.append((job.cpu_seconds - before) / (time.perf_counter() - begun))
    into.tpot.append(sum(tpot) / len(tpot))
    into.ttft.append(sum(ttft) / len(ttft))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="paceline-bench-")) / "server.log"
    server = ServerProcess((args.model, "--drafter", "none"), log=log)
    jobs = {way: Job(way) for way in WAYS[1:]}
    found = {way: Turns() for way in WAYS}
    try:
        server.wait_until_healthy(START_SECONDS)
        port = int(server.url.rpartition(":")[2])
        turn(port, args.model, None, args.at_once, 0, Turns())  # warm
        for number in range(args.rounds):
            for way in WAYS[number % 4 :] + WAYS[: number % 4]:
                turn(port, args.model, jobs.get(way), args.at_once, number, found[way])
    finally:
        server.stop()
        for job in jobs.values():
            job.process.kill()
            job.process.wait()
    base = found["alone"]
    rows = [
        [
            way,
            "{:.3f} ({:.3f} to {:.3f})".format(*ratio_interval(each.tpot, base.tpot)),
            "{:.3f} ({:.3f} to {:.3f})".format(*ratio_interval(each.ttft, base.ttft)),
            f"{sum(each.cores) / len(each.cores):.2f}" if each.cores else "",
        ]
        for way, each in found.items()
    ]
    print(machine())
    title = f"{args.model}, {args.at_once} requests at once, {args.rounds} turns of each way"
    table(title, ["a job beside it", "TPOT ÷ alone", "TTFT ÷ alone", "cores of the job"], rows)


if __name__ == "__main__":
    main()
