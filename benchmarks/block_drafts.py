"""A DFlash drafter served: what it costs and what it buys.

    python benchmarks/block_drafts.py WHAT MODEL [DRAFTER] [--set FOLDER[:CHOICE]]

    speedup   DRAFTER: against AL and measured costs
    draws     DRAFTER: argmax or coupled, at T > 0
    cost      of a draft, 1 to 5 layers, whole and cut head
    context   of a draft, over short and long contexts

DRAFTER is what overfit_drafter.py wrote, whose prompts.json holds the prompts; or any other, with a
set of `paceline synth`: its held-out prompts (CHOICE: those of a part) are asked as its application
asks them. `cost` and `context` use random drafters of the model's own width: nothing is accepted,
the time is the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from harness import machine, table

from paceline import LLM, SamplingParams
from paceline.bench.steady import Steady
from paceline.bench.turns import in_turns, ratio
from paceline.core import SpeculativeParams
from paceline.drafters.base import ObservedRows
from paceline.evaluate.sets import EvalPrompt, load_set, parse_sets
from paceline.models.config import ModelConfig
from paceline.models.dflash.checkpoint import save_checkpoint
from paceline.models.dflash.config import default_layer_ids, read_dflash_config
from paceline.models.dflash.tensors import dflash_tensors
from paceline.models.loader import load_model

TOKENS = 96
CUT = 8192  # rows of a cut head: what a list of frequent tokens is likely to hold
_names = itertools.count()


def asked(args: argparse.Namespace) -> list[EvalPrompt]:
    """What is asked: prompts of `--set`, else those whose answers the drafter knows by heart."""
    if args.set is None:
        known = json.loads((Path(args.drafter) / "prompts.json").read_text())[: args.prompts]
        return [EvalPrompt(str(number), tuple(ids)) for number, ids in enumerate(known)]

    def refuse(_: object) -> list[int]:
        raise SystemExit(f"--set {args.set}: a folder that `paceline synth` wrote is needed")

    (spec,) = parse_sets([args.set])
    return load_set(spec, refuse, prompts=args.prompts, fits=1024 - TOKENS, answers=0).prompts


def params_of(prompt: EvalPrompt, **more: float | None) -> SamplingParams:
    """To the last token, where nothing says what an answer ends with."""
    free = prompt.grammar is None
    return SamplingParams(
        max_tokens=TOKENS, grammar=prompt.grammar, ignore_eos=free, **{"temperature": 0, **more}
    )


# -- what it buys ----------------------------------------------------------------------------------


class Clock:
    """Seconds spent in some methods, call by call."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def watch(self, owner: object, method: str, name: str) -> None:
        work = getattr(owner, method)

        def timed(*args: object, **named: object) -> object:
            start = time.perf_counter()
            result = work(*args, **named)
            self.seconds[name].append(time.perf_counter() - start)
            return result

        setattr(owner, method, timed)

    def take(self) -> dict[str, list[float]]:
        taken, self.seconds = self.seconds, defaultdict(list)
        return taken


class Run:
    """A run of several requests at once, and what happened while all of them decoded: from when the
    last one has its first token to when the first one ends."""

    def __init__(
        self, llm: LLM, prompts: Sequence[EvalPrompt], wishes: SpeculativeParams,
        clock: Clock | None = None, **sampling: float | None,
    ) -> None:  # fmt: skip
        steady = Steady(llm.engine)
        params = [params_of(prompt, **sampling) for prompt in prompts]
        group = steady.begin([prompt.ids for prompt in prompts], wishes, params)
        if clock is not None:
            clock.take()
        begun, steps = group.tokens, []
        while group.complete:
            steps.append(steady.step(group))
        self.requests = group.requests
        self.seconds = sum(step.seconds for step in steps)
        self.tokens = group.tokens - begun
        self.parts = {} if clock is None else clock.take()
        self.tokens_per_step = self.tokens / (len(steps) * len(prompts))
        while group.running:  # to the end of every text: how much was accepted counts all of it
            steady.step(group)
        steady.end(group)


def speedup(args: argparse.Namespace) -> None:
    """Speedup against AL ÷ (t_verify / t_AR + t_draft / t_AR), all measured in one run.

    AL is steps of AR ÷ steps with drafts: what a grammar forces comes free to both.
    """
    prompts, rows = asked(args), []
    for head, together in itertools.product(("full", "cut"), args.together):
        llm = LLM(args.model, f"d={args.drafter},head={head}", prefix_cache=False,
                  draft_policy=args.policy, max_model_len=1024, max_stretch=1e3,
                  kv_memory=2**30)  # fmt: skip
        clock, engine = Clock(), llm.engine
        clock.watch(engine.runner.network, "forward", "forward")
        clock.watch(engine.drafters["d"], "propose", "draft")
        clock.watch(engine.drafters["d"], "observe", "inject")
        batches = [prompts[i : i + together] for i in range(0, len(prompts), together)]
        batches = [batch for batch in batches if len(batch) == together]
        Run(llm, batches[0], SpeculativeParams())
        ratios, predictions, lengths, parts = [], [], [], defaultdict(list)
        for batch in batches * args.rounds:
            plain = Run(llm, batch, SpeculativeParams(off=True), clock)
            alone = statistics.mean(plain.parts["forward"])
            drafted = Run(llm, batch, SpeculativeParams(), clock)
            steps = len(drafted.parts["forward"])
            taken = {name: sum(seconds) / steps for name, seconds in drafted.parts.items()}
            speed = drafted.tokens / drafted.seconds, plain.tokens / plain.seconds
            ratios.append(speed[0] / speed[1])
            cost = (taken["forward"] + taken.get("draft", 0.0)) / alone
            lengths.append(drafted.tokens_per_step / plain.tokens_per_step)
            predictions.append(lengths[-1] / cost)
            for name, seconds in taken.items():
                parts[name].append(seconds / alone)
        measured = statistics.median(a / b for a, b in zip(ratios, predictions, strict=True))
        shares = [
            statistics.median(parts[name]) if parts[name] else 0.0
            for name in ("forward", "draft", "inject")
        ]
        rows.append((head, together, statistics.mean(lengths), statistics.median(ratios),
                     *shares, measured))  # fmt: skip
        del llm, engine
    table(
        f"speedup, {Path(args.model).name}, {len(prompts)} prompts, policy {args.policy} "
        f"({machine()})",
        ["head", "at once", "AL incl. bonus", "speedup", "t_verify ÷ t_AR", "t_draft ÷ t_AR",
         "t_inject ÷ t_AR", "speedup ÷ prediction"],
        rows,
    )  # fmt: skip


# -- what it costs ---------------------------------------------------------------------------------


def random_drafter(
    folder: Path, shape: ModelConfig, layers: int, block: int, cut: int | None
) -> Path:
    """Of the model's own width, with random weights."""
    hf = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": block,
        "dflash_config": {
            "mask_token_id": shape.vocab_size - 300,
            "target_layer_ids": list(default_layer_ids(shape.num_layers, 5)),
        },
        "num_target_layers": shape.num_layers, "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers, "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size, "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_dim,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False,
        "rope_theta": shape.rope.theta, "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(layers)
    weights = {
        name: (torch.randn(size, generator=generator) * 0.02).bfloat16()
        for name, size in dflash_tensors(read_dflash_config(hf)).items()
    }
    ids = None if cut is None else list(range(0, shape.vocab_size, shape.vocab_size // cut))[:cut]
    save_checkpoint(folder, hf, weights, head_ids=ids)
    return folder


class Bench:
    """One engine with a random drafter, and a request in it that has some context."""

    def __init__(
        self, args: argparse.Namespace, shape: ModelConfig, layers: int, cut: int | None
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            made = random_drafter(Path(folder) / "d", shape, layers, args.block, cut)
            window = f",window={args.window}" if getattr(args, "window", None) else ""
            self.llm = LLM(
                args.model, f"d={made}{window}", prefix_cache=False, draft_policy="fixed",
                max_model_len=getattr(args, "max_model_len", None), kv_memory=2**30,
                max_stretch=1e3,
            )  # fmt: skip
        self.engine, self.drafter = self.llm.engine, self.llm.engine.drafters["d"]

    def fill(self, context: int, count: int = 1) -> list:
        """Requests that have been prefilled and are about to draft."""
        params = SamplingParams(temperature=0, max_tokens=600, ignore_eos=True)
        requests = []
        for index in range(count):
            prompt = np.random.default_rng(index).integers(1000, 20000, context).tolist()
            requests += self.engine.make_requests(prompt, params, request_id=f"r{next(_names)}")
        self.engine.add(requests)
        while not all(request.output_len >= 2 for request in requests):
            self.engine.step()
        return requests

    def sides(self, requests: list, length: int) -> dict[str, Callable[[], float]]:
        """A draft, its bandwidth bound, a target step of one row, one that verifies, injection."""
        engine, drafter, network = self.engine, self.drafter, self.engine.runner.network
        size = len(drafter.feature_layers) * network.hidden_size
        features = torch.randn(length + 1, size).bfloat16()

        def inject() -> None:
            rows = []
            for request in requests:
                start = len(request.tokens) - 1 - (length + 1)
                rows.append(ObservedRows(request, start, length + 1, features))
            drafter.observe(rows)

        def target(rows: int) -> Callable[[], object]:
            from paceline.engine.draft import Draft
            from paceline.engine.scheduler import Scheduled

            entries = [
                Scheduled(
                    r, r.computed, 1, rows - 1, Draft(tokens=[5] * (rows - 1), length=rows - 1)
                )
                for r in requests
            ]
            return lambda: engine.runner.forward(entries)

        lengths = [length] * len(requests)
        for request in requests:  # slots for the draft rows, as the scheduler would make them
            assert engine.cache.allocate(request, len(request.tokens) + length + 1)
        works = {
            "draft": lambda: drafter.propose(requests, lengths),
            "network": self._network(requests, lengths),
            "bound": drafter.network.read_weights,
            "target": target(1),
            "verify": target(length + 1),
            "inject": inject,
        }
        return {name: _timed(work) for name, work in works.items()}

    def _network(self, requests: list, lengths: list[int]) -> Callable[[], object]:
        batch = self.drafter._blocks(requests, lengths)
        return lambda: self.drafter.network.draft(batch)


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def side() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return side


def cost(args: argparse.Namespace) -> None:
    """A draft against its own bandwidth bound and against the target, by layers, head, batch."""
    shape, rows = load_model(args.model).config, []
    for layers, cut in itertools.product(range(1, 6), (None, CUT)):
        for together in (1, 8, 32) if layers in (2, 5) else (1,):
            args.max_model_len = 1024
            bench = Bench(args, shape, layers, cut)
            requests = bench.fill(256, together)
            times = in_turns(bench.sides(requests, args.block - 1), args.rounds)
            rows.append((
                layers, cut or "full", together, ratio(times["bound"], times["network"]),
                ratio(times["draft"], times["target"]), ratio(times["inject"], times["target"]),
                ratio(times["verify"], times["target"]),
            ))  # fmt: skip
            del bench
    table(
        f"a draft of {args.block - 1} tokens, context 256, {Path(args.model).name} ({machine()})",
        ["layers", "head rows", "at once", "bound ÷ draft network", "draft ÷ target step",
         "injection ÷ target step", "verify ÷ target step"], rows,
    )  # fmt: skip


def context(args: argparse.Namespace) -> None:
    """A draft over long contexts, whole and within a window, against the one at 1k tokens."""
    shape, rows = load_model(args.model).config, []
    args.contexts = [n for n in args.contexts if n + 700 <= shape.max_context]
    for window in (None, 1024):
        args.window, args.max_model_len = window, max(args.contexts) + 700
        bench = Bench(args, shape, 5, CUT)
        first = None
        for tokens in args.contexts:
            (request,) = bench.fill(tokens)
            times = in_turns(bench.sides([request], args.block - 1), args.rounds)
            seconds = statistics.median(times["draft"])
            first = first or seconds
            rows.append((
                window or "none", tokens, seconds / first, ratio(times["draft"], times["target"]),
            ))  # fmt: skip
            bench.engine.abort(request.id)
        del bench
    table(f"a draft of {args.block - 1} tokens, 5 layers, cut head, {Path(args.model).name} "
          f"({machine()})", ["draft window", "context", "÷ the first", "draft ÷ target step"],
          rows)  # fmt: skip


def draws(args: argparse.Namespace) -> None:
    """AL where requests sample: the drafter's argmax against a draw with the target's own noise."""
    prompts, rows = asked(args), []
    names = ("argmax", "coupled")
    llm = LLM(args.model, [f"{d}={args.drafter},draw={d}" for d in names], prefix_cache=False,
              draft_policy="fixed", max_model_len=1024)  # fmt: skip
    for temperature in (0.3, 0.7, 1.0):
        lengths = {}
        for name in names:
            before = llm.engine.stats().speculation
            for index, prompt in enumerate(prompts):
                wishes = SpeculativeParams(drafter=name)
                sampling = {"temperature": temperature, "seed": index}
                Run(llm, [prompt], wishes, **sampling)
            stats = llm.engine.stats().speculation - before
            lengths[name] = stats.acceptance_length
        rows.append((temperature, lengths["argmax"], lengths["coupled"]))
    table(f"AL incl. bonus when sampling, rule match, {Path(args.model).name}, {len(prompts)} "
          f"prompts ({machine()})", ["T", "argmax", "coupled"], rows)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speedup", "cost", "context", "draws"])
    parser.add_argument("model")
    parser.add_argument("drafter", nargs="?")
    parser.add_argument("--set", metavar="FOLDER[:CHOICE]", help="of `paceline synth`")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--policy", default="fixed")
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 16384])
    args = parser.parse_args()
    if args.set is not None and args.what in ("cost", "context"):
        parser.error(f"--set {args.set}: {args.what} uses random tokens; leave --set out")
    globals()[args.what](args)


if __name__ == "__main__":
    main()
