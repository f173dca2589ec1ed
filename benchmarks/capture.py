"""Measure what capturing traces costs requests: TPOT with traces and token ids ÷ without.

python benchmarks/capture.py MODEL [--at-once 1 32]

It asks one process in turns: two apps serve the same engine, and one of them writes the counts, the
rounds and the token ids of every request, three times as often as a server does, so that the
writing falls into its own turns. The CPU time of the writing thread and of handing answers to it is
added up; what others wait for the interpreter's lock meanwhile is not in it. The client shares the
cores. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from harness import Worker, machine, table
from streams import Streamed, questions, queued_over_http

from paceline.bench.turns import in_turns, ratio_interval

OFF, ON = "no traces", "traces with token ids"
FLUSH_SECONDS = 3.0


class TwoApps(Worker):
    """A process with two apps over one engine, by their ports; `counts` tells of its traces."""

    def __init__(self, model: str, drafter: str, folder: Path) -> None:
        command = [sys.executable, __file__, model, "--two-apps", "--drafter", drafter]
        self.process = subprocess.Popen(
            [*command, "--folder", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ports: dict[str, int] = self._answer()["ports"]

    def counts(self) -> dict[str, float]:
        return self.ask(op="counts")


def serve_two_apps(args: argparse.Namespace) -> None:
    """Serve one engine by two apps until stdin ends; answer each line with the counts of traces."""
    import uvloop

    from paceline.core.garbage import collecting_paused
    from paceline.dataset.traces import writer
    from paceline.engine.async_engine import AsyncEngine
    from paceline.engine.build import build_engine
    from paceline.engine.config import EngineConfig
    from paceline.server.app import create_app
    from paceline.server.run import Listener
    from paceline.server.settings import ServerSettings
    from paceline.server.sockets import bind

    writer.FLUSH_SECONDS = FLUSH_SECONDS
    options = {OFF: {}, ON: {"traces": args.folder, "traces_tokens": True}}
    with collecting_paused():
        engine = AsyncEngine(build_engine(EngineConfig(model=args.model, drafter=args.drafter)))
        settings = {
            side: ServerSettings(port=0, served_model_names=("m",), log_level="error", **more)
            for side, more in options.items()
        }
        apps = {side: create_app(engine, each) for side, each in settings.items()}
    capture = apps[ON].state.capture
    takes = Timed(capture.take)
    capture.take = takes
    sockets = {side: bind(each) for side, each in settings.items()}
    listening = threading.Semaphore(0)
    listeners = [
        Listener(apps[side], settings[side], sockets[side], lambda _: listening.release(), 2)
        for side in options
    ]

    async def run() -> None:
        engine.start()
        for app in apps.values():
            app.state.languages.load()
        sampling = [asyncio.create_task(app.state.live.run()) for app in apps.values()]
        await asyncio.gather(*(listener.run() for listener in listeners))
        for task in sampling:
            task.cancel()
        engine.shutdown()
        capture.close()

    def run_loop() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    loop = threading.Thread(target=run_loop)
    loop.start()
    for _ in listeners:
        listening.acquire()
    ports = {side: socket.getsockname()[1] for side, socket in sockets.items()}
    print(json.dumps({"ports": ports}), flush=True)
    for _ in sys.stdin:
        counts = capture.counts
        told = {"written": counts.written, "lost": counts.dropped + counts.failed}
        spent = {"writing": writer_seconds(), "taking": takes.seconds}
        print(json.dumps({**told, **spent}), flush=True)
    for listener in listeners:
        listener.stop()
    loop.join()


class Timed:
    """A function whose CPU time is added up."""

    def __init__(self, work: Callable[..., object]) -> None:
        self._work, self.seconds = work, 0.0

    def __call__(self, *arguments: object) -> object:
        start = time.thread_time()
        try:
            return self._work(*arguments)
        finally:
            self.seconds += time.thread_time() - start


def writer_seconds() -> float:
    """Return the CPU time of the thread that writes traces."""
    (thread,) = (each for each in threading.enumerate() if each.name == "paceline-traces")
    fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def capture(args: argparse.Namespace) -> None:
    """TPOT with traces and token ids ÷ without, one stream at a time and many."""
    rows: list[Sequence[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        apps = TwoApps(args.model, args.drafter, Path(folder))
        try:
            for at_once in args.at_once:
                rows.append(_captured(apps, at_once, args))
        finally:
            apps.stop()
        told = _check_traces(Path(folder))
    header = ["at once", "TPOT ÷", "seconds per token ÷", "TPOT (this run)",
              "the writing thread, of a core", "handing over", "answers"]  # fmt: skip
    title = f"{ON} ÷ {OFF}, {args.model}, up to {args.tokens} tokens, {args.rounds} turns"
    table(f"{title}, {told} ({machine()})", header, rows)


def _captured(apps: TwoApps, at_once: int, args: argparse.Namespace) -> list[object]:
    turns = count()
    streams = max(args.streams, 2 * at_once)
    written, seconds_on = 0, 0.0
    spent = {"writing": 0.0, "taking": 0.0}

    def turn(side: str, number: Iterator[int]) -> Streamed:
        nonlocal written, seconds_on
        asked = questions(args.tokens, next(number) // 2)
        before = apps.counts()
        start = time.perf_counter()
        streamed = queued_over_http(
            apps.ports[side], "m", [next(asked) for _ in range(streams)], at_once
        )
        seconds = time.perf_counter() - start
        after = apps.counts()
        while side == ON and after["written"] < before["written"] + streams:
            assert after["lost"] == 0, "answers were left out"
            time.sleep(0.05)
            after = apps.counts()
        if side == ON:
            for name in spent:
                spent[name] += after[name] - before[name]
            seconds_on += seconds
            written += streams
        return streamed

    sides = in_turns({side: partial(turn, side, turns) for side in (OFF, ON)}, args.rounds)
    cells: list[object] = [at_once]
    for figure in ("pooled_tpot", "seconds_per_token"):
        on, off = ([getattr(each, figure) for each in sides[side]] for side in (ON, OFF))
        middle, low, high = ratio_interval(on, off)
        cells.append(f"{middle:.4f} ({low:.4f} to {high:.4f})")
    tpot = statistics.median(each.pooled_tpot for each in sides[ON])
    shares = [f"{100 * each / seconds_on:.2f}%" for each in spent.values()]
    return [*cells, f"{1e3 * tpot:.1f} ms", *shares, written]


def _check_traces(folder: Path) -> str:
    """Return what was captured. Raises AssertionError where an answer has no token ids."""
    from paceline.dataset.traces.reader import read_requests, read_tokens

    answers, with_ids = len(list(read_requests(folder))), len(list(read_tokens(folder)))
    assert answers == with_ids > 0, f"{answers} captured, {with_ids} with token ids"
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    return f"{size / answers / 1e3:.1f} kB an answer on disk"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--streams", type=int, default=6, help="of a turn, at least")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--two-apps", action="store_true", help="be the process that is asked")
    parser.add_argument("--folder", help="of --two-apps: where traces go")
    args = parser.parse_args()
    serve_two_apps(args) if args.two_apps else capture(args)


if __name__ == "__main__":
    main()
