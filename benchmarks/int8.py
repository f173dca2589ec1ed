"""int8 against bfloat16: the time of a step, and what it costs in quality.

    python benchmarks/int8.py speed MODEL… [--repeats 30]
    python benchmarks/int8.py quality MODEL… [--tokens 4000]

Steps of both networks and pure reads of their weights take turns in one process, over a context of
128 tokens, head and logits included. Other work on the machine only ever makes a step slower, so a
ratio is one of best times; the median of the paired ratios stands beside it.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from harness import machine, ratio, table
from kernels import Measured, batch_of, interleave

from paceline.models.batch import BLOCK_SIZE
from paceline.models.loader import load_model
from paceline.models.native_network import NativeNetwork
from paceline.models.recipe import INT8

CONTEXT = 128
ROWS = (1, 2, 4, 8, 16, 32)


def speed(name: str, repeats: int) -> list[list[object]]:
    networks = {}
    for number in ("bf16", "int8"):
        loaded = load_model(name)
        args = (loaded.config, loaded.weights, CONTEXT)
        network = NativeNetwork(*args, INT8) if number == "int8" else NativeNetwork(*args)
        network.allocate_kv(CONTEXT // BLOCK_SIZE)
        networks[number] = network
    steps = {}
    for rows in ROWS:
        batch = batch_of(rows, CONTEXT, loaded.config.vocab_size, rows)
        for number, network in networks.items():
            steps[number, rows] = Measured(lambda n=network, b=batch: n.forward(b))
    for number, network in networks.items():
        steps[number, 0] = Measured(network.read_weights)
    interleave(steps, repeats)
    lines = []
    for rows in (0, *ROWS):
        bf16, int8 = steps["bf16", rows], steps["int8", rows]
        lines.append(
            [
                loaded.name,
                rows or "read",
                f"{bf16.best * 1e3:.2f}",
                f"{int8.best * 1e3:.2f}",
                int8.best / bf16.best,
                ratio(int8.times, bf16.times),
                steps["int8", 0].best / int8.best,
                int8.best / steps["int8", 1].best,
            ]
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("speed", "quality"))
    parser.add_argument("models", nargs="+", help="what `paceline serve` takes")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    np.random.seed(0)
    header = [
        "model",
        "rows",
        "bf16 ms",
        "int8 ms",
        "int8 ÷ bf16",
        "median",
        "of the bound",
        "/ 1 row",
    ]
    lines = [line for name in options.models for line in speed(name, options.repeats)]
    table(f"int8 ÷ bf16, {options.threads} threads ({machine()})", header, lines)


if __name__ == "__main__":
    main()
