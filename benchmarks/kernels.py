"""How near the kernels come to what the machine can do: bandwidth, then arithmetic.

Every figure is a share of a bound that is measured between the steps it judges.

    python benchmarks/kernels.py MODEL [--repeats 15] [--prefill 512,4096] [--requests 8,32]
        [--quantize int8]

Other work on the machine only ever makes a step slower, so shares are taken of the best of the
interleaved repeats; medians stand beside them and show how noisy the run was.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from harness import machine

from paceline.core.spans import OFF, Lane, Recording
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, Part
from paceline.models.loader import load_model
from paceline.models.native_network import NativeNetwork, read_bytes
from paceline.models.quantized import recipe_of


@dataclass
class Measured:
    """Seconds of one step, over interleaved repeats."""

    run: Callable[[], object]
    times: list[float] = field(default_factory=list)

    def once(self) -> None:
        start = time.perf_counter()
        self.run()
        self.times.append(time.perf_counter() - start)

    @property
    def best(self) -> float:
        return min(self.times)

    @property
    def median(self) -> float:
        return float(np.median(self.times))


def interleave(steps: dict[str, Measured], repeats: int) -> None:
    for round_ in range(repeats + 1):
        for step in steps.values():
            step.once()
            if round_ == 0:  # warms up buffers and pages
                step.times.clear()


def batch_of(rows: int, context: int, vocab: int, outputs: int) -> ForwardBatch:
    """`rows` rows of one sequence that end a context of `context` tokens."""
    generator = np.random.default_rng(0)
    blocks = -(-context // BLOCK_SIZE)
    return ForwardBatch(
        ids=generator.integers(0, vocab, rows).astype(np.int32),
        positions=np.arange(context - rows, context, dtype=np.int32),
        seq_starts=np.array([0, rows], dtype=np.int32),
        block_tables=np.arange(blocks, dtype=np.int32)[None],
        logit_rows=np.arange(rows - outputs, rows, dtype=np.int32),
    )


def small_steps(network: NativeNetwork, contexts: list[int], repeats: int) -> None:
    """Decode and verify steps against a pure read of the packed weights by the same threads."""
    steps = {"read": Measured(network.read_weights)}
    for context in contexts:
        for rows in (1, 2, 4, 8, 16, 32):
            if rows > 1 and context != contexts[0] and rows != 16:
                continue
            batch = batch_of(rows, context, network.vocab_size, rows)
            steps[f"{rows:2} rows, context {context}"] = Measured(
                lambda batch=batch: network.forward(batch)
            )
    interleave(steps, repeats)
    bound = steps["read"].best
    gigabytes = network.streamed_bytes / 1e9
    print(f"weights {gigabytes:.3f} GB, bandwidth {gigabytes / bound:.1f} GB/s (best)")
    print("| step | best ms | median ms | share of the bound | / 1 row |\n|---|--:|--:|--:|--:|")
    for name, step in steps.items():
        one = steps[f" 1 rows, context {name.split()[-1]}"] if name != "read" else step
        print(
            f"| {name} | {step.best * 1e3:.2f} | {step.median * 1e3:.2f} "
            f"| {bound / step.best:.2f} | {step.best / one.best:.2f} |"
        )


def of_requests(requests: int, context: int, vocab: int) -> ForwardBatch:
    """One row each of so many requests behind `context` tokens, whose blocks lie in random order,
    as they do in a server that has run for a while."""
    generator = np.random.default_rng(0)
    blocks = generator.permutation(requests * -(-(context + 1) // BLOCK_SIZE))
    return ForwardBatch(
        ids=generator.integers(0, vocab, requests).astype(np.int32),
        positions=np.full(requests, context, dtype=np.int32),
        seq_starts=np.arange(requests + 1, dtype=np.int32),
        block_tables=blocks.astype(np.int32).reshape(requests, -1),
        logit_rows=np.arange(requests, dtype=np.int32),
    )


def attention_of_many(
    network: NativeNetwork, counts: list[int], contexts: list[int], repeats: int
) -> None:
    """Attention of decode steps of many requests, against a pure read of their keys and values."""
    config = network.config
    token = 4 * config.num_layers * config.num_kv_heads * config.head_dim  # bytes, in bf16
    print("\n| requests | context | attention: share of the step | share of the read of its KV |")
    print("|---|--:|--:|--:|")
    for context in contexts:
        for count in counts:
            batch = of_requests(count, context, network.vocab_size)
            size = token * (context + 1) * count
            network.allocate_kv(batch.block_tables.size)
            network.clear_kv(batch.block_tables.size)  # pages that were never written are not read
            keys_and_values = torch.zeros(size, dtype=torch.uint8) + 1
            lane = Recording().lane("engine")

            def step(batch: ForwardBatch = batch, lane: Lane = lane) -> None:
                with lane("forward"):
                    network.forward(batch)

            reads = partial(read_bytes, network.library, keys_and_values)
            steps = {"read": Measured(reads), "step": Measured(step)}
            network.record(lane)
            interleave(steps, repeats)
            network.record(OFF)
            attention = dict.fromkeys((i for i, s in enumerate(lane.spans()) if s.parent < 0), 0)
            for span in lane.spans():
                if span.name == Part.ATTENTION:
                    attention[span.parent] += span.duration
            best = min(attention.values()) / 1e9
            print(
                f"| {count} | {context} | {best / steps['step'].best:.2f} "
                f"| {steps['read'].best / best:.2f} |"
            )


def products_in_registers(network: NativeNetwork) -> tuple[Measured, float]:
    """Return a loop of nothing but bfloat16 products in registers, and the operations of a run."""
    threads, rounds = torch.get_num_threads(), 4_000_000
    loop = network.library.pl_peak
    loop.restype = ctypes.c_int64
    flop = rounds * threads * loop(ctypes.c_int64(1), threads)
    return Measured(lambda: loop(ctypes.c_int64(rounds), threads)), flop


def prefill(network: NativeNetwork, lengths: list[int], repeats: int) -> None:
    """Prompt steps against a loop of nothing but products in registers."""
    threads = torch.get_num_threads()
    peak, flop = products_in_registers(network)
    steps = {"peak": peak}
    for length in lengths:
        batch = batch_of(length, length, network.vocab_size, 1)
        steps[str(length)] = Measured(lambda batch=batch: network.forward(batch))
    interleave(steps, repeats)
    top = flop / peak.best
    print(f"\npeak {top / 1e9:.0f} GFLOP/s with {threads} threads")
    print("| prompt | tokens/s | GFLOP/s | share of the peak |\n|---|--:|--:|--:|")
    for length in lengths:
        best = steps[str(length)].best
        rate = prompt_flop(network, length) / best
        print(f"| {length} | {length / best:.0f} | {rate / 1e9:.0f} | {rate / top:.2f} |")


def prompt_flop(network: NativeNetwork, length: int) -> float:
    """Flop of all linear layers and of causal attention; of the head for one row."""
    c = network.config
    attention = 2 * c.hidden_size * (c.num_heads + c.num_kv_heads) * c.head_dim
    linear = c.num_layers * (attention + 3 * c.hidden_size * c.intermediate_size)
    scores = c.num_layers * c.num_heads * c.head_dim * length  # both products, half of them masked
    return 2.0 * length * (linear + scores) + 2.0 * c.vocab_size * c.hidden_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="what `paceline serve` takes: a name, a folder, a hub id")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--contexts", default="128,512")
    parser.add_argument("--prefill", default="512,4096")
    parser.add_argument("--requests", default="8,32", help="of decode steps, one row each")
    parser.add_argument("--request-contexts", default="200,1000")
    parser.add_argument("--quantize", choices=("int8",))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load_model(options.model)
    lengths, contexts, requests, request_contexts = (
        [int(n) for n in numbers.split(",") if n]
        for numbers in (
            options.prefill, options.contexts, options.requests, options.request_contexts
        )
    )  # fmt: skip
    longest = max(lengths + contexts + request_contexts) + 1
    recipe = recipe_of(options.quantize, "cpu", "bfloat16")
    network = NativeNetwork(loaded.config, loaded.weights, longest, recipe)
    network.allocate_kv(-(-longest // BLOCK_SIZE))
    print(f"{loaded.name}, kernel path {network.path}, {options.threads} threads ({machine()})")
    if contexts:
        small_steps(network, contexts, options.repeats)
    if lengths:
        prefill(network, lengths, max(2, options.repeats // 5))
    if requests:
        attention_of_many(network, requests, request_contexts, options.repeats)


if __name__ == "__main__":
    main()
