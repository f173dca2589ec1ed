"""Host time: what a plain decode step takes outside the native forward.

    python benchmarks/host_time.py MODEL [--at-once 1 8 32] [--steps 200] [--rounds 5]

One engine without a drafter in bf16 and one in int8, at each number of requests in turns. A clock
is read before and after each step and each native forward, and nothing else is recorded: the spans
of `paceline profile` take time themselves.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
from typing import Any

import numpy as np
from harness import machine, table
from prompts import encoded

from paceline import LLM, SamplingParams
from paceline.bench.turns import in_turns

_names = itertools.count()


class TimedLibrary:
    """The kernels of an engine; `forward` is the time of native forwards so far, in seconds."""

    def __init__(self, library: Any) -> None:
        self._library, self.forward = library, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def pl_forward(self, *arguments: Any) -> int:
        start = time.perf_counter()
        code: int = self._library.pl_forward(*arguments)
        self.forward += time.perf_counter() - start
        return code


def times(llm: LLM, library: TimedLibrary, at_once: int, steps: int) -> np.ndarray:
    """Seconds of decode steps of so many requests, in all and outside the forward: [steps, 2]."""
    prompts = itertools.islice(itertools.cycle(encoded(llm.tokenizer, "chat")), at_once)
    params = SamplingParams(temperature=0, max_tokens=steps + 8, ignore_eos=True)
    name = f"run{next(_names)}"
    requests = [
        llm.engine.make_requests(prompt, params, None, request_id=f"{name}-{number}", salt=b"")[0]
        for number, prompt in enumerate(prompts)
    ]
    llm.engine.add(requests)
    seconds = []
    while llm.engine.has_work:
        decoding = all(r.output_len and r.finish_reason is None for r in requests)
        start, before = time.perf_counter(), library.forward
        llm.engine.step()
        taken = time.perf_counter() - start
        if decoding:
            seconds.append((taken, taken - (library.forward - before)))
    return np.array(seconds[:steps])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    sides = {}
    for weights, quantize in (("bf16", None), ("int8", "int8")):
        llm = LLM(args.model, None, quantize=quantize, max_num_seqs=max(args.at_once))
        network = llm.engine.runner.network
        library = network.library = TimedLibrary(network.library)
        for at_once in args.at_once:
            sides[weights, at_once] = lambda llm=llm, library=library, at_once=at_once: np.median(
                times(llm, library, at_once, args.steps), axis=0
            )
    gc.collect()
    gc.freeze()  # as the server does
    rows = []
    for (weights, at_once), medians in in_turns(sides, args.rounds).items():
        step, host = np.median(medians, axis=0) * 1e3
        shares = [host / step for step, host in medians]
        rows.append((weights, at_once, f"{step:.2f}", f"{host:.3f}", f"{np.median(shares):.1%}",
                     f"{min(shares):.1%} to {max(shares):.1%}"))  # fmt: skip
    table(
        f"a plain step outside the native forward, {args.model}, {args.steps} steps ({machine()})",
        ["weights", "requests", "step, ms", "outside, ms", "share", f"of {args.rounds} turns"],
        rows,
    )


if __name__ == "__main__":
    main()
