"""Two versions of Paceline beside each other over HTTP, in turns: did a change cost speed?

python benchmarks/versions.py MODEL --before FOLDER [--after FOLDER] [--rounds 7]

The folders are checkouts; without --after it is this one. Both servers run all the time, and sleep
while the other one is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from functools import partial
from pathlib import Path

from harness import machine, table

from paceline.bench.load.client import ChatClient, served_model
from paceline.bench.load.paired import Load, run_load
from paceline.bench.load.server_process import ServerProcess
from paceline.bench.prompts import BenchPrompt, load_prompts, shipped
from paceline.bench.turns import in_turns, ratio_interval

HERE = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, default=HERE)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--drafts", choices=["off", "auto"], nargs="+", default=["off", "auto"])
    parser.add_argument("--serve", default="", help="more arguments of `paceline serve`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        servers = {
            name: ServerProcess(
                [args.model, *args.serve.split()], Path(folder) / name, source=path / "src"
            )
            for name, path in (("before", args.before), ("after", args.after))
        }
        try:
            for server in servers.values():
                server.wait_until_healthy(600)
            rows = [row for drafts in args.drafts for row in compare(servers, drafts, args)]
        finally:
            for server in servers.values():
                server.stop(5)
    header = ["drafts", "at once", "what", "after ÷ before", "95%"]
    table(f"two versions over HTTP, {args.model}, {args.tokens} tokens each, T=0 ({machine()})",
          header, rows)  # fmt: skip


def compare(
    servers: dict[str, ServerProcess], drafts: str, args: argparse.Namespace
) -> list[tuple[object, ...]]:
    wish = None if drafts == "auto" else drafts
    prompts = [prompt for name in shipped() for prompt in load_prompts(name)]
    rows: list[tuple[object, ...]] = []
    for at_once in args.at_once:
        requests = max(4, at_once)
        sides = {
            name: partial(_load, server.url, prompts, requests, at_once, wish, args.tokens)
            for name, server in servers.items()
        }
        loads = in_turns(sides, args.rounds)
        for what in ("throughput", "tpot", "ttft"):
            values = {name: [getattr(one, what) for one in runs] for name, runs in loads.items()}
            middle, low, high = ratio_interval(values["after"], values["before"])
            rows.append((drafts, at_once, what, f"{middle:.3f}", f"{low:.3f}–{high:.3f}"))
            print(*rows[-1], flush=True)
    return rows


def _load(
    url: str,
    prompts: list[BenchPrompt],
    requests: int,
    at_once: int,
    drafts: str | None,
    tokens: int,
) -> Load:
    async def go() -> Load:
        client = ChatClient(
            url, model=await served_model(url), max_tokens=tokens, extra={"ignore_eos": True}
        )
        try:
            return await run_load(
                prompts, client, requests=requests, concurrency=at_once, speculative=drafts
            )
        finally:
            await client.close()

    return asyncio.run(go())


if __name__ == "__main__":
    main()
