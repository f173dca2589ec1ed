"""Fuzzes the real server: `python -m tests.fuzz --bodies 100000 --seed 1`.

Starts `paceline serve` on a tiny model in a child process, sends requests that are each a function
of (seed, index), keeps bystanders beside them, restarts a server that died, and exits with 1 on a
death, a 5xx, a request without an answer, a bystander's gap over the bar, memory that grows, or
text that changed. `--only INDEX` sends single requests again, each alone. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.bench.load.server_process import ServerProcess
from tests.fuzz.bodies import MODEL, Case, case
from tests.fuzz.bystander import BystanderProcess
from tests.fuzz.connection import ConnectionDropped, HttpConnection
from tests.fuzz.findings import Bounds, Death, Findings, report, save
from tests.fuzz.server import SERVE, START_SECONDS, Life, Start, WatchedServer, tiny_folder
from tests.fuzz.storm import HANG, Storm

ROOT = Path(__file__).parents[2]
USUAL = Bounds()
ABORTED = -signal.SIGABRT  # by the fuzzer, because it was stuck
FATAL = "Fatal Python error"  # begins the stacks in the log
MOST_DEATHS = 12  # then nothing more is sent: each costs a start
TRIED_DEATHS, TRIED_GAPS = 6, 3  # whose requests are sent again, each alone
TRIED_REQUESTS = 8  # of a gap
SETTLE = 1.0  # seconds after an answer in which a request may still end or stall the server


def fuzz(
    start: Start, seed: int, indices: Sequence[int], workers: int, most_deaths: int = MOST_DEATHS
) -> Findings:
    """Sends everything and checks the server afterwards; judges nothing."""
    findings, began = Findings(), time.monotonic()
    life = Life(start())
    texts = life.texts
    storm = Storm(seed, indices, workers, findings)
    storm.life = life
    storm.start()
    try:
        while not storm.done:
            time.sleep(0.05)
            life.watch()
            if not life.ended:
                continue
            storm.life = None
            bury(life, findings)
            if len(findings.deaths) >= most_deaths:
                findings.checks.append(f"stopped after {most_deaths} deaths")
                storm.stop()
                break
            life = Life(start())
            storm.life = life
        if storm.error is not None:
            raise storm.error
        findings.seconds = time.monotonic() - began
        if life.ended and len(findings.deaths) < most_deaths:
            bury(life, findings)
        elif not life.ended:
            check(life, texts, findings)
    finally:
        storm.stop()
        life.process.stop(1.0)
    return findings


def bury(life: Life, findings: Findings) -> None:
    """Notes a server that ended by itself."""
    time.sleep(0.5)  # until the workers have noticed as well
    code = life.process.exit_code
    assert code is not None
    log = life.process.output()
    findings.noticed.append(life.bystander.stop())
    findings.rss = life.rss
    cases = findings.lost.setdefault(life.url, [])
    stacks = log[log.find(FATAL) :] if FATAL in log else log[-2000:]
    findings.deaths.append(Death(code, stacks, cases))


def check(life: Life, texts: list[str], findings: Findings) -> None:
    """What a server that has survived must look like when nobody asks any more."""
    findings.noticed.append(life.bystander.stop())
    busy = life.busy()
    if busy:
        findings.checks.append(f"when nobody asks, the server still has {busy}")
    told = life.references()
    if told != texts:
        findings.checks.append(f"the reference requests are told another text: {told}, not {texts}")
    life.rss.append(0.0)
    life.watch()
    findings.rss = [sample for sample in life.rss if sample]
    if not life.process.stop():
        findings.checks.append("SIGTERM did not end the server with 0")


# -- single requests ------------------------------------------------------------------------------


def alone(process: ServerProcess, sent: Case) -> tuple[str, float]:
    """What one request is told by a server that has nothing else to do, and the longest gap that a
    bystander noticed meanwhile."""
    bystander = BystanderProcess(process.url, MODEL)
    try:
        told = asyncio.run(_asked(process.url, sent))
    except (OSError, ConnectionDropped) as error:
        told = f"{type(error).__name__}: {error}"
    time.sleep(SETTLE)
    noticed = bystander.stop()
    gaps = [seconds for what, _, _, seconds in noticed.gaps if what != "one token"]
    return told, max(gaps, default=0.0)


async def _asked(url: str, sent: Case) -> str:
    async with asyncio.timeout(HANG):
        reply = await HttpConnection(url).ask(sent.method, sent.target, sent.content)
    return f"{reply.status} {reply.body[:500].decode('utf-8', 'replace')}"


def find_causes(start: Start, seed: int, bounds: Bounds, findings: Findings) -> None:
    """Sends what was in flight at the first deaths and the longest gaps again, each alone."""
    process: ServerProcess | None = None

    def tried(sent: Case) -> tuple[bool, float]:
        """Whether a server died or hung of a request, and a bystander's longest gap."""
        nonlocal process
        if process is None or process.exit_code is not None:
            process = start()
            process.wait_until_healthy(START_SECONDS)
        told, gap = alone(process, sent)
        if told.startswith("TimeoutError"):
            process.stop(0.0)
        return process.exit_code is not None, gap

    try:
        hung = [sent for sent, _ in findings.hangs]
        for death in findings.deaths[:TRIED_DEATHS]:
            suspects = (
                [*hung[:TRIED_REQUESTS], *death.cases] if death.code == ABORTED else death.cases
            )
            for sent in suspects:
                if tried(sent)[0]:
                    death.culprits.append(sent.index)
                    break
        deadly = {sent.index for death in findings.deaths for sent in death.cases}
        seen: set[int] = set()
        for _, began, ended, _ in findings.gaps(bounds.gap)[:TRIED_GAPS]:
            flying = findings.in_flight(began, ended)[:TRIED_REQUESTS]
            for index in [number for number in flying if number not in seen | deadly]:
                seen.add(index)
                sent = case(seed, index)
                gap = tried(sent)[1]
                if gap > bounds.gap:
                    findings.gap_causes.append((sent, gap))
    finally:
        if process is not None:
            process.stop(1.0)


def send_only(start: Start, seed: int, indices: Sequence[int], bounds: Bounds) -> int:
    """Sends single requests, each alone, and prints what came of them."""
    failed = False
    process = start()
    try:
        for index in indices:
            if process.exit_code is not None:
                process = start()
            process.wait_until_healthy(START_SECONDS)
            sent = case(seed, index)
            told, gap = alone(process, sent)
            print(f"{sent.shown(2000)}\n-> {told}\nlongest gap of a bystander: {gap:.2f} s")
            code = process.exit_code
            if code is not None:
                print(f"the server ended with code {code}")
            failed |= code is not None or told[0] in "5T" or gap > bounds.gap  # 5xx, or a time-out
    finally:
        process.stop(1.0)
    return int(failed)


def main(arguments: Sequence[str] | None = None, start: Start | None = None) -> int:
    """The exit code. `start` gives another server than Paceline's, to test the fuzzer itself."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=2000, help="requests (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="INDEX",
                        help="index of the first request (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12, help="requests in flight at once")
    parser.add_argument("--gap", type=float, default=USUAL.gap, metavar="SECONDS",
                        help="longest gap of a bystander (default: %(default)s)")  # fmt: skip
    parser.add_argument("--wait", type=float, default=USUAL.wait, metavar="SECONDS",
                        help="longest wait for one token (default: %(default)s)")  # fmt: skip
    parser.add_argument("--growth", type=float, default=USUAL.growth, metavar="MIB",
                        help="how much memory may grow (default: %(default)s)")  # fmt: skip
    parser.add_argument("--only", type=int, action="append", metavar="INDEX",
                        help="send this request alone; repeat it for several")  # fmt: skip
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", metavar="FOLDER",
                        help="where failing requests go (default: build/fuzz)")  # fmt: skip
    args = parser.parse_args(arguments)
    bounds = Bounds(args.gap, args.wait, args.growth)
    with tempfile.TemporaryDirectory() as scratch:
        start = start or paceline_on(Path(scratch))
        if args.only:
            return send_only(start, args.seed, args.only, bounds)
        findings = fuzz(start, args.seed, range(args.first, args.first + args.bodies), args.workers)
        find_causes(start, args.seed, bounds, findings)
    failures = findings.failures(bounds)
    told = "\n".join([report(findings, bounds), *(f"FAILED: {failure}" for failure in failures)])
    save(findings, args.out, told)
    print(told, flush=True)
    return 1 if failures else 0


def paceline_on(scratch: Path) -> Start:
    """Starts `paceline serve` on a tiny model, each time on another port."""
    folder = tiny_folder(scratch / "tiny")
    count = 0

    def start() -> ServerProcess:
        nonlocal count
        count += 1
        return WatchedServer([os.fspath(folder), *SERVE], scratch / f"server-{count}.log")

    return start
