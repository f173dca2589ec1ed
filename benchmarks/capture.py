"""What capturing traces costs: TPOT of a server that writes them ÷ TPOT of one that does not.

    python benchmarks/capture.py MODEL [--rounds 40] [--at-once 1 32] [--tokens 128]

Three servers of the same model run side by side and are asked in turns: two without traces, whose
ratio is what two processes differ by anyway, and one that writes the counts, the rounds and the
token ids of every request. The client shares their cores. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness import machine, table
from prompts import prompt_set
from streams import Streamed, over_http

from paceline.bench.load.server_process import ServerProcess
from paceline.bench.turns import in_turns, ratio_interval
from paceline.dataset.traces.reader import read_requests, read_tokens

PLAIN, AGAIN, CAPTURING = "no traces", "no traces, another process", "traces with token ids"
START_SECONDS = 300.0


def measured(
    servers: dict[str, ServerProcess], at_once: int, tokens: int, rounds: int, model: str
) -> dict[str, list[Streamed]]:
    """Return the streams of each server in turns, the same prompts for all."""
    texts = [text for kind in ("chat", "code") for text in prompt_set(kind)]
    texts = (texts * (1 + at_once // len(texts)))[:at_once]

    def ask(server: ServerProcess) -> Streamed:
        return over_http(server.port, model, texts, tokens)

    return in_turns({name: partial(ask, server) for name, server in servers.items()}, rounds)


def rows(streams: dict[str, list[Streamed]], at_once: int) -> list[Sequence[object]]:
    """Return a row of ratios for each server but the first."""
    made: list[Sequence[object]] = []
    for name in (AGAIN, CAPTURING):
        cells: list[object] = [at_once, name]
        for figure in ("tpot", "seconds_per_token"):
            above, below = ([getattr(s, figure) for s in streams[side]] for side in (name, PLAIN))
            middle, low, high = ratio_interval(above, below)
            cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
        tpot = statistics.median(each.tpot for each in streams[name])
        made.append([*cells, f"{1e3 * tpot:.1f} ms"])
    return made


def run(args: argparse.Namespace, folder: Path) -> None:
    traces = folder / "traces"
    common = [args.model, "--drafter", args.drafter, "--served-model-name", "m"]
    options: dict[str, list[str]] = {PLAIN: [], AGAIN: []}
    options[CAPTURING] = ["--traces", str(traces), "--traces-tokens"]
    servers = {
        name: ServerProcess([*common, *more], folder / f"server{place}.log")
        for place, (name, more) in enumerate(options.items())
    }
    try:
        for server in servers.values():
            server.wait_until_healthy(START_SECONDS)
        shown: list[Sequence[object]] = []
        for at_once in args.at_once:
            streams = measured(servers, at_once, args.tokens, args.rounds, "m")
            shown += rows(streams, at_once)
    finally:
        for server in servers.values():
            server.stop()
    asked = sum((args.rounds + 1) * at_once for at_once in args.at_once)
    captured, with_ids = len(list(read_requests(traces))), len(list(read_tokens(traces)))
    assert captured == with_ids == asked, f"{captured} captured, {with_ids} with token ids"
    header = ["at once", "server", "TPOT ÷", "seconds per token ÷", "TPOT (this run)"]
    title = f"capture ÷ no capture, {args.model}, {args.tokens} tokens, {args.rounds} turns"
    table(f"{title} ({machine()})", header, shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--drafter", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


if __name__ == "__main__":
    main()
