"""int8 beside OpenVINO GenAI and vLLM, one request at a time: time per token, in turns in one run.

    python benchmarks/int8_peers.py MODEL --openvino PYTHON [--vllm PYTHON] [--drafter SPEC …]

OPENVINO is the Python of an environment with openvino-genai and optimum-intel; the model is
exported to int8 weights there once (activations are quantised as it runs). vLLM runs in bfloat16:
it wants int8 checkpoints made with tools of its own. A drafter is a spec as `paceline serve` takes
it.

A turn is one prompt. Its time per token is that between the first token and the last one that is
counted: none after the end of the text or in a loop, and as many as the shortest answer has.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from harness import Worker, machine, table
from peer_answers import FEWEST, counted, ends_of, seconds_to
from peer_models import exported
from prompts import encoded
from transformers import AutoTokenizer

from paceline.bench.turns import in_turns, ratio_interval

TOKENS = 128  # most of an answer
ROUNDS = 20  # prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--openvino", required=True)
    parser.add_argument("--vllm")
    parser.add_argument("--drafter", action="append", default=[])
    parser.add_argument("--kind", default="code")
    parser.add_argument("--exported", type=Path, default=Path("build/peers"))
    args = parser.parse_args()
    folder = exported(args.model, "int8", args.openvino, args.exported)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    prompts = encoded(tokenizer, args.kind)
    workers = {
        "OpenVINO GenAI, int8": Worker("openvino", str(folder), python=args.openvino),
        "Paceline, bf16": Worker("paceline", args.model),
        "Paceline, int8": Worker("paceline", args.model, quantize="int8"),
    }
    if args.vllm:
        workers["vLLM, bf16"] = Worker("vllm", args.model, python=args.vllm)
    for spec in args.drafter:
        name = f"Paceline, int8, {spec.split(':')[0].split('=')[-1]}"
        workers[name] = Worker("paceline", args.model, quantize="int8", drafter=spec)
    sides = {name: answering(worker, prompts) for name, worker in workers.items()}
    times = tpots(in_turns(sides, ROUNDS), ends_of(args.model))
    base = times["OpenVINO GenAI, int8"]
    rows: list[list[object]] = []
    for name, own in times.items():
        middle, low, high = ratio_interval(base, own)
        rows.append([name, 1e3 * statistics.median(own), middle, f"{low:.2f} to {high:.2f}"])
    print(machine())
    header = ["engine", "ms per token", "speed ÷ OpenVINO", "95 %"]
    title = f"One request, up to {TOKENS} tokens, {len(base)} {args.kind} prompts"
    table(f"{title}: {Path(args.model).name}", header, rows)
    for worker in workers.values():
        worker.stop()


def answering(worker: Worker, prompts: list[list[int]]) -> Callable[[], dict[str, Any]]:
    """Answer the next prompt, whichever round it is: each worker sees them all."""
    turns = cycle(prompts)
    return lambda: worker.ask(op="stream", prompt=next(turns), max_tokens=TOKENS)


def tpots(answers: dict[str, list[dict[str, Any]]], ends: set[int]) -> dict[str, list[float]]:
    """Return each worker's seconds per token, turn by turn, without turns of very short answers."""
    times: dict[str, list[float]] = {name: [] for name in answers}
    for turn in zip(*answers.values(), strict=True):
        count = min(counted(answer["tokens"], ends) for answer in turn)
        if count < FEWEST:
            continue
        for name, answer in zip(answers, turn, strict=True):
            first, tokens = next(mark for mark in answer["marks"] if mark[1])
            times[name].append((seconds_to(answer["marks"], count) - first) / (count - tokens))
    return times


if __name__ == "__main__":
    main()
