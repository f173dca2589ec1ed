"""What speculation buys, against AR in the same run.

    python benchmarks/speculation.py replay MODEL          speedup ÷ AL at a known acceptance
    python benchmarks/speculation.py overhead MODEL        a drafter attached but asked for nothing
    python benchmarks/speculation.py drafters MODEL        ngram, suffix, auto: copy, code, chat
    python benchmarks/speculation.py draft-model MODEL SMALL

One process, one engine, requests alone, every cache empty before each (prefix cache off, a fresh
cache scope for each request). At most 256 new tokens, cut where an n-gram repeats three times.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence

from harness import machine, table
from prompts import encoded

from paceline import LLM, SamplingParams
from paceline.bench.turns import in_turns, ratio, ratio_interval
from paceline.core import OutputDelta, Round, SpeculationStats, SpeculativeParams
from paceline.dataset.loops import loop_start

MOST_TOKENS = 256
_names = itertools.count()


class Run:
    """Times of one request: when how many tokens were there."""

    def __init__(self, engine, prompt: Sequence[int], params: SamplingParams, wishes) -> None:
        name = f"run{next(_names)}"
        (self.request,) = engine.make_requests(
            list(prompt), params, wishes, request_id=name, salt=name.encode()
        )
        self.marks: list[tuple[float, int]] = []
        self.rounds: list[Round] = []
        engine.add([self.request])
        while engine.has_work:
            deltas: list[OutputDelta] = engine.step()
            self.rounds += [delta.round for delta in deltas if delta.round is not None]
            if deltas:
                self.marks.append((time.perf_counter(), self.request.output_len))

    @property
    def stats(self) -> SpeculationStats:
        return SpeculationStats.of(self.rounds)

    @property
    def ids(self) -> list[int]:
        return self.request.output_ids

    def tpot(self, count: int) -> float:
        """Seconds per token after the first step, up to the step that passes `count` tokens."""
        start, first = self.marks[0]
        end, reached = next((m for m in self.marks if m[1] >= count), self.marks[-1])
        return (end - start) / max(1, reached - first)

    @property
    def acceptance_length(self) -> float:
        return self.stats.acceptance_length or 1.0


def off() -> SpeculativeParams:
    return SpeculativeParams(off=True)


def sampling(temperature: float, seed: int, tokens: int = MOST_TOKENS) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True)


def replay(args: argparse.Namespace) -> None:
    """Speedup ÷ AL with the true continuation and planted errors, γ = 15, at T = 0 and T = 1."""
    rows = []
    llm = LLM(
        args.model,
        [f"al{al}=replay,al={al},max_draft_len=15" for al in args.lengths],
        prefix_cache=False,
        draft_policy=args.policy,
        threads=args.threads,
    )
    engine = llm.engine
    prompts = encoded(llm.tokenizer, "code")[: args.prompts]
    temperatures = (0.0, 1.0)
    for al in args.lengths:
        ratios: dict[float, list[float]] = {t: [] for t in temperatures}
        lengths: dict[float, list[float]] = {t: [] for t in temperatures}
        # Both temperatures in turns: the machine changes its pace, and their ratio is asked for.
        for (index, prompt), t in itertools.product(enumerate(prompts), temperatures):
            params = sampling(t, index)
            plain = Run(engine, prompt, params, off())
            truth = plain.ids
            engine.drafters[f"al{al}"].learn(prompt, truth)
            drafted = Run(engine, prompt, params, SpeculativeParams(drafter=f"al{al}"))
            assert drafted.ids == truth, "the text changed"
            ratios[t].append(plain.tpot(len(truth)) / drafted.tpot(len(truth)))
            lengths[t].append(drafted.acceptance_length)
        for t in temperatures:
            speedup, length = statistics.median(ratios[t]), statistics.mean(lengths[t])
            paired = ratio(ratios[t], ratios[0.0])
            rows.append((t, al, length, speedup, speedup / length, paired))
    header = ["T", "AL asked", "AL incl. bonus", "speedup", "speedup ÷ AL", "÷ speedup at T=0"]
    name = args.model.rstrip("/").split("/")[-1]
    table(f"replay, γ=15 ({args.policy}), {name}, {len(prompts)} code prompts, "
          f"{MOST_TOKENS} tokens ({machine()})", header, rows)  # fmt: skip


def overhead(args: argparse.Namespace) -> None:
    """`suffix` attached with γ = 0 against no drafter: paired, with a 95% interval."""
    options = {"prefix_cache": False, "threads": args.threads, "kv_memory": 2**28}
    bare, attached = LLM(args.model, None, **options), LLM(args.model, "suffix", **options)
    # One network for both, in turns: where weights happen to lie in memory makes more than 1%.
    attached.engine.runner.network = bare.engine.runner.network
    prompt = encoded(bare.tokenizer, "chat")[0]
    params = sampling(0.0, 1, 64)
    none = SpeculativeParams(max_draft_len=0)
    sides = {
        "no drafter": lambda: Run(bare.engine, prompt, params, None).tpot(64),
        "suffix, γ=0": lambda: Run(attached.engine, prompt, params, none).tpot(64),
    }
    times = in_turns(sides, args.rounds)
    middle, low, high = ratio_interval(times["suffix, γ=0"], times["no drafter"])
    table(f"suffix with γ=0 ÷ no drafter, TPOT ({machine()})", ["ratio", "95% interval"],
          [(f"{middle:.4f}", f"{low:.4f} to {high:.4f}")])  # fmt: skip


def compared(
    llm: LLM, prompts: list[list[int]], drafters: Sequence[str], rounds: int
) -> dict[str, tuple[float, float, bool]]:
    """Median over prompts of the median paired speedup, mean AL, and whether all text agreed."""
    speedups: dict[str, list[float]] = {d: [] for d in drafters}
    lengths: dict[str, list[float]] = {d: [] for d in drafters}
    same = dict.fromkeys(drafters, True)
    params = SamplingParams(temperature=0, max_tokens=MOST_TOKENS)
    for prompt in prompts:
        truth = Run(llm.engine, prompt, params, off()).ids
        count = loop_start(truth) or len(truth)
        wishes = {"off": off(), **{d: SpeculativeParams(drafter=d) for d in drafters}}
        runs: dict[str, list[Run]] = {}
        sides = {}
        for name, wish in wishes.items():
            runs[name] = []

            def side(name: str = name, wish: SpeculativeParams = wish) -> float:
                runs[name].append(Run(llm.engine, prompt, params, wish))  # noqa: B023
                return runs[name][-1].tpot(count)  # noqa: B023

            sides[name] = side
        times = in_turns(sides, rounds, warm_up=0)
        for name in drafters:
            same[name] &= all(run.ids == truth for run in runs[name])
            speedups[name].append(ratio(times["off"], times[name]))
            lengths[name].append(runs[name][0].acceptance_length)
    return {
        d: (statistics.median(speedups[d]), statistics.mean(lengths[d]), same[d]) for d in drafters
    }


def drafters(args: argparse.Namespace) -> None:
    names = ["ngram", "suffix", "auto"]
    llm = LLM(args.model, names, prefix_cache=False, threads=args.threads)
    rows = []
    for kind in args.sets:
        prompts = encoded(llm.tokenizer, kind)[: args.prompts]
        for name, (speedup, length, same) in compared(llm, prompts, names, args.rounds).items():
            rows.append((kind, name, speedup, length, "yes" if same else "NO"))
    header = ["prompts", "drafter", "speedup over AR", "AL incl. bonus", "same text"]
    table(f"{args.model.split('/')[-1]}, T=0, ≤ {MOST_TOKENS} tokens, {args.prompts} prompts a set "
          f"({machine()})", header, rows)  # fmt: skip


def draft_model(args: argparse.Namespace) -> None:
    """A small model of the same family; the prediction is AL ÷ (verify + draft) in AR steps."""
    length = args.draft_len
    llm = LLM(
        args.model,
        [f"small=draft_model:{args.small},max_draft_len={length}"],
        prefix_cache=False,
        threads=args.threads,
    )
    prompts = encoded(llm.tokenizer, "code")[: args.prompts]
    results = compared(llm, prompts, ["small"], args.rounds)
    speedup, al, same = results["small"]
    predicted = al / round_cost(llm, length)
    header = ["speedup over AR", "AL incl. bonus", "predicted", "measured ÷ predicted", "same text"]
    table(f"draft_model {args.small.split('/')[-1]} for {args.model.split('/')[-1]}, γ={length}, "
          f"{len(prompts)} code prompts ({machine()})", header,
          [(speedup, al, predicted, speedup / predicted, "yes" if same else "NO")])  # fmt: skip


def round_cost(llm: LLM, length: int) -> float:
    """Cost of a drafted round in AR steps, from timed forwards of both networks at one context."""
    from paceline.engine.runner import timed_step

    target = llm.engine.runner.network
    small = llm.engine.drafters["small"].network
    sides = {
        "AR": lambda: clock(lambda: timed_step(target, 1)),
        "verify": lambda: clock(lambda: timed_step(target, length + 1)),
        # The first draft forward catches up with the last round's two newest tokens.
        "draft": lambda: (
            clock(lambda: timed_step(small, 2)) + (length - 1) * clock(lambda: timed_step(small, 1))
        ),
    }
    times = in_turns(sides, 15)
    return ratio([v + d for v, d in zip(times["verify"], times["draft"], strict=True)], times["AR"])


def clock(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["replay", "overhead", "drafters", "draft-model"])
    parser.add_argument("model")
    parser.add_argument("small", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--draft-len", type=int, default=4)
    parser.add_argument("--policy", default="fixed", choices=["fixed", "throughput"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sets", nargs="+", default=["copy", "code", "chat"])
    args = parser.parse_args()
    {"replay": replay, "overhead": overhead, "drafters": drafters, "draft-model": draft_model}[
        args.what
    ](args)


if __name__ == "__main__":
    main()
