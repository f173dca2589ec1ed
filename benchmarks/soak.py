"""Mixed traffic at saturation, with aborts, hostile requests and slow readers; then a drain.

python benchmarks/soak.py [MODEL] [--minutes 30] [--clients 24] [--seed 0] [--hostile 0.05]

Exits with 1 on any error that is not the client's, memory or files that grow, blocks that are not
given back, a bystander that waits too long, or a drain that loses something. The bystander streams
and polls /health from a process of its own, and the clients run at a lower priority than the
server, so that their work does not count as its stall. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
from harness import machine, table
from soak_answers import Problem
from soak_clients import Crowd, Tally
from soak_http import http_client
from soak_traffic import CONTEXT, LONGEST_BODY, Traffic
from soak_watch import Sample, Watch, files, slope

from paceline.bench.load.client import served_model
from paceline.bench.load.server_process import ServerProcess

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.fuzz.bystander import BystanderProcess, Noticed

DRAIN_SECONDS = 60
START_SECONDS = 30  # by when its requests are all in flight
SLOW = 8.0  # seconds that a slow client leaves the end of its answer unread in the drain
RUNNING, WAITING = 8, 12  # far fewer than clients and their choices: the queue is always used
# Whatever a server keeps on purpose has a bound, here one that is reached while it warms up.
SERVER = [
    "--max-num-seqs", f"{RUNNING}", "--max-waiting", f"{WAITING}", "--kv-memory", "40MiB",
    "--max-model-len", f"{CONTEXT}", "--max-body", f"{LONGEST_BODY}",
    # answers of all clients feed the suffix cache, as before there was a choice
    "--share-answers", "always",
    "--drain-timeout", f"{DRAIN_SECONDS}", "--holdback", "0.1",
    "--drafter", "auto,max_bytes=2000000", "--drafter", "ngram",
    "--drafter", "suffix,max_bytes=2000000",
]  # fmt: skip
WARM_UP = 1 / 3  # of the load, that memory is not judged by, nor are latencies
GROWTH = 24.0  # MiB by which the fitted line may rise over the rest of it
SPARE_FILES = 2
GAP = 2.5  # seconds between two events of a stream, or for /health: full steps, and preemption
CLIENT_NICE = 5
SHOWN = 20  # problems that are printed in full


@dataclass(slots=True)
class Drain:
    """What became of requests in flight, and of those that came after SIGTERM."""

    in_flight: int = 0
    finished: int = 0
    seconds: float = 0.0
    newcomers: Counter[str] = field(default_factory=Counter)
    exited: bool = False  # with 0, in time


@dataclass(slots=True)
class Result:
    tally: Tally = field(default_factory=Tally)
    drain: Drain = field(default_factory=Drain)
    samples: list[Sample] = field(default_factory=list)
    before: int = 0  # open files of the idle server before the load, and after it
    after: int = 0
    idle: Sample | None = None
    noticed: Noticed = field(default_factory=Noticed)  # by the bystander, during the load
    failures: list[str] = field(default_factory=list)

    def expect(self, condition: object, otherwise: str) -> None:
        if not condition:
            self.failures.append(otherwise)


async def soak(server: ServerProcess, args: argparse.Namespace) -> Result:
    result = Result()
    traffic = Traffic(await served_model(server.url))
    watch = Watch(server.url, server.pid)
    await load(server, traffic, watch, args, result)
    await drain(server, traffic, watch, args, result)
    judge(result)
    log = server.output()
    result.expect("ERROR" not in log and "Traceback" not in log, f"the server's log:\n{log}")
    return result


async def load(
    server: ServerProcess, traffic: Traffic, watch: Watch, args: argparse.Namespace, result: Result
) -> None:
    result.before = files(server.pid)
    crowd = Crowd(server.url, traffic, result.tally, args.hostile)
    bystander = BystanderProcess(server.url, traffic.model)
    os.nice(CLIENT_NICE)
    watching = asyncio.create_task(watch.run(interval=2.0))
    seconds = args.minutes * 60
    asyncio.get_running_loop().call_later(WARM_UP * seconds, result.tally.warmed_up)
    await crowd.run(args.clients, seconds, args.seed)
    await crowd.close()
    result.noticed = await asyncio.to_thread(bystander.stop)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching  # raises what it has found
    result.samples = watch.samples
    result.idle = await watch.until_idle(10)
    await asyncio.sleep(0.5)
    result.after = files(server.pid)


async def drain(
    server: ServerProcess, traffic: Traffic, watch: Watch, args: argparse.Namespace, result: Result
) -> None:
    """SIGTERM with a full batch, a queue, and clients that are slow but do read."""
    rng, told, closed = random.Random(args.seed), result.drain, asyncio.Event()
    crowd = Crowd(server.url, traffic, result.tally)

    async def rest() -> None:
        """Until the engine has long been done, and what is left is to be read."""
        if stopping is not None and not closed.is_set():
            await closed.wait()
            await asyncio.sleep(SLOW)

    async def one(index: int) -> None:
        slow = index % 8 == 0
        ask = traffic.bulky(rng) if slow else traffic.endless(rng, 48, stream=index % 3 > 0)
        try:
            answer = await crowd.answered(ask, rest if slow else None)
            if answer.tokens != ask.body["max_tokens"]:
                raise Problem(f"{answer.tokens} of {ask.body['max_tokens']} tokens")
            told.finished += 1
        except Exception as error:
            result.tally.problem("drain", error)

    stopping: asyncio.Task[bool] | None = None
    told.in_flight = RUNNING + WAITING
    requests = [asyncio.create_task(one(index)) for index in range(told.in_flight)]
    async with asyncio.timeout(START_SECONDS):
        while (await watch.sample()).in_flight < told.in_flight - 2:  # one or two may have ended
            await asyncio.sleep(0.05)
    began = time.monotonic()
    stopping = asyncio.create_task(asyncio.to_thread(server.stop, DRAIN_SECONDS + 15.0))
    await newcomers(server.url, traffic, stopping, closed, told.newcomers)
    told.exited, told.seconds = await stopping, time.monotonic() - began
    closed.set()
    await asyncio.gather(*requests)
    await crowd.close()


async def newcomers(
    url: str,
    traffic: Traffic,
    stopping: asyncio.Task[bool],
    closed: asyncio.Event,
    outcomes: Counter[str],
) -> None:
    """Asks from when the server says that it drains until it is gone; `closed` when it no longer
    listens."""
    rng, draining = random.Random(0), False
    while not stopping.done():
        async with http_client(url) as http:
            try:
                draining = draining or (await http.get("/health")).status_code == 503
                if draining:
                    ask = traffic.endless(rng, 1, stream=False)
                    response = await http.post(ask.path, json=ask.body)
                    outcomes[f"{response.status_code}"] += 1
            except httpx.TransportError:
                closed.set()
                outcomes["connection refused"] += 1
        await asyncio.sleep(0.1)


def judge(result: Result) -> None:
    tally, told, idle = result.tally, result.drain, result.idle
    result.expect(not tally.problems, f"{len(tally.problems)} errors that are not the client's")
    result.expect(len(tally.ttft) > 1 and len(tally.tpot) > 1, "hardly a stream was read")
    for what, seconds in result.noticed.longest.items():
        if what != "one token":  # it waits in the queue, which is always full
            waited = f"a bystander waited {seconds:.1f} s for its {what}, {GAP} are allowed"
            result.expect(seconds <= GAP, waited)
    result.expect(result.noticed.streams, "the bystander could not read a stream")
    growth = grown(result.samples)
    result.expect(growth < GROWTH, f"memory grows: {growth:.1f} MiB, {GROWTH} are allowed")
    spare = result.after - result.before
    result.expect(spare <= SPARE_FILES, f"{spare} more files are open than before")
    result.expect(idle and not idle.in_flight, "requests were in flight when all had hung up")
    usage = idle.gauges["kv_cache_usage_perc"] if idle else 1.0
    result.expect(usage == 0, f"{usage:.1%} of the KV blocks are in use when nothing runs")
    lost = told.in_flight - told.finished
    result.expect(lost == 0, f"the drain lost {lost} of {told.in_flight} requests")
    result.expect(told.newcomers["503"] > 0, "no newcomer was told 503 while the server drained")
    strange = set(told.newcomers) - {"503", "connection refused"}
    result.expect(not strange, f"newcomers were told {strange} while the server drained")
    result.expect(told.exited, "SIGTERM did not end the server with 0 in time")


def settled(samples: Sequence[Sample]) -> list[Sample]:
    """Those after the warm-up."""
    end = samples[-1].seconds
    return [sample for sample in samples if sample.seconds >= WARM_UP * end]


def grown(samples: Sequence[Sample]) -> float:
    """MiB by which the line that fits the resident memory after the warm-up rises over it."""
    kept = settled(samples)
    rise = slope([(sample.seconds, sample.rss) for sample in kept])
    return rise * (kept[-1].seconds - kept[0].seconds)


def made(start: Sample, end: Sample) -> float:
    """Tokens committed in between."""
    return end.gauges["generation_tokens_total"] - start.gauges["generation_tokens_total"]


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values) or [float("nan")]
    return ordered[round(share * (len(ordered) - 1))]


def report(result: Result, args: argparse.Namespace, model: str) -> None:
    tally, samples, idle = result.tally, result.samples, result.idle
    assert idle is not None
    title = f"{model}, {args.minutes:g} minutes, {args.clients} clients, seed {args.seed}"
    table(f"load: {title} ({machine()})", ["outcome", "requests"], tally.outcomes.most_common())
    rows = [
        (name, len(values), *(f"{1e3 * quantile(values, share):.0f} ms" for share in (0.5, 0.99)))
        for name, values in (("TTFT, queue included", tally.ttft), ("TPOT", tally.tpot))
    ]
    table("well-behaved streams, after the warm-up", ["", "streams", "p50", "p99"], rows)
    noticed = result.noticed
    rows = [
        (what, f"{1e3 * noticed.p99[what]:.0f} ms", f"{1e3 * noticed.longest[what]:.0f} ms")
        for what in noticed.longest
    ]
    table("waits of a bystander", ["for", "p99", "longest"], rows)
    over_time(samples)
    last, kept = samples[-1], settled(samples)
    growth, span = grown(samples), (kept[-1].seconds - kept[0].seconds) / 60
    rows = [
        ("RSS at the start, warmed up, at the end",
         f"{samples[0].rss:.0f}, {kept[0].rss:.0f}, {last.rss:.0f} MiB"),
        ("RSS, fitted over the last two thirds",
         f"{growth:+.1f} MiB, {growth / span if span else 0:+.2f} MiB/min (bound {GROWTH:g} MiB)"),
        ("open files, idle, before and after", f"{result.before}, {result.after}"),
        ("KV in use, idle, afterwards", f"{idle.gauges['kv_cache_usage_perc']:.1%}"),
        ("throughput", f"{made(samples[0], last) / last.seconds:.0f} tok/s"),
        ("preemptions", f"{last.gauges['num_preemptions_total']:.0f}"),
    ]  # fmt: skip
    table("server", ["", ""], rows)
    told = result.drain
    row = (told.in_flight, told.finished, dict(told.newcomers), told.seconds, told.exited)
    table("drain", ["in flight", "finished", "newcomers", "seconds", "exit 0"], [row])


def over_time(samples: Sequence[Sample]) -> None:
    """A row for each tenth of the load, from the sample that ends it."""
    rows = []
    picked = [samples[(len(samples) - 1) * tenth // 10] for tenth in range(11)]
    for before, sample in pairwise(picked):
        took = sample.seconds - before.seconds
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        between = [s for s in samples if before.seconds < s.seconds <= sample.seconds] or [sample]
        running, waiting, kv = (
            sum(s.gauges[name] for s in between) / len(between) for name in names
        )
        rate = made(before, sample) / took if took else 0.0
        rows.append((f"{sample.seconds / 60:.1f}", f"{sample.rss:.0f}", sample.files,
                     f"{running:.1f}", f"{waiting:.1f}", f"{kv:.0%}", f"{rate:.0f}"))  # fmt: skip
    header = ["minute", "RSS, MiB", "open files", "running", "waiting", "KV in use", "tok/s"]
    table("over time", header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hostile", type=float, default=0.05, metavar="SHARE",
                        help="share of what clients do that is meant to harm others")  # fmt: skip
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess([args.model, *SERVER], Path(folder) / "log")
        try:
            server.wait_until_healthy(300)
            result = asyncio.run(soak(server, args))
        except Exception:
            print(server.output(), file=sys.stderr)
            raise
        finally:
            server.stop(0.1)
    report(result, args, args.model.rstrip("/").split("/")[-1])
    for problem in result.tally.problems[:SHOWN]:
        print(f"error: {problem}")
    for failure in result.failures:
        print(f"FAILED: {failure}")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
