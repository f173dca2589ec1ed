"""CUDA ratios on random weights of Qwen2.5-0.5B's shape: step cost by rows, replay against AR, and
what a DFlash draft costs.

    python benchmarks/gpu.py

Random weights: the text means nothing, the times do. `replay` proposes the true continuation with
planted errors, so its verification is real.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import torch
from block_drafts import Clock, random_drafter
from shapes import random_model
from speculation import Run, off, sampling

from paceline.core import SpeculativeParams
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig

LENGTHS = (2, 4, 8)
TOKENS = 96


def drafting() -> None:
    """A random DFlash drafter of five layers: what a draft costs, and that it changes no text."""
    loaded = random_model("qwen2.5-0.5b", "bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        made = random_drafter(Path(folder) / "d", loaded.config, 5, 16, 8192)
        config = EngineConfig(
            model="random", drafter=(f"full={made},head=full", f"cut={made}"), device="cuda",
            prefix_cache=False, max_model_len=2048, draft_policy="fixed",
        )  # fmt: skip
        engine = build_engine(config, loaded)
    prompt, params = [(i * 31) % 5000 for i in range(600)], sampling(0.0, 1, TOKENS)
    plain = Run(engine, prompt, params, off())
    for name in engine.drafters:
        clock = Clock()
        clock.watch(engine.drafters[name], "propose", "draft")
        clock.watch(engine.drafters[name], "observe", "inject")
        run = Run(engine, prompt, params, SpeculativeParams(drafter=name))
        assert run.ids == plain.ids, "the text changed"
        step = plain.tpot(TOKENS)
        draft, inject = (statistics.median(clock.seconds[w][2:]) for w in ("draft", "inject"))
        print(
            f"  DFlash, 5 layers, {name} head: draft ÷ step {draft / step:.2f}, "
            f"injection ÷ step {inject / step:.2f}, same text: yes"
        )


def quantized() -> None:
    """fp8 against bf16: a step's time by rows."""
    costs = []
    for quantize in (None, "int8"):
        config = EngineConfig(
            model="random", drafter=None, device="cuda", quantize=quantize, max_model_len=2048
        )
        engine = build_engine(config, random_model("qwen2.5-0.5b", "bfloat16"))
        costs.append(engine.scheduler.cost)
    for rows in (1, 16, 64):
        print(f"  fp8 step ÷ bf16 step, {rows} rows: {costs[1](rows) / costs[0](rows):.2f}")


def main() -> None:
    specs = tuple(f"al{al}=replay,al={al},max_draft_len=15" for al in LENGTHS)
    config = EngineConfig(
        model="random", drafter=specs, device="cuda", prefix_cache=False, max_model_len=2048
    )
    engine = build_engine(config, random_model("qwen2.5-0.5b", "bfloat16"))
    cost = engine.scheduler.cost
    print(f"{torch.cuda.get_device_name()}, TorchNetwork (eager), random Qwen2.5-0.5B, bf16")
    for rows, seconds in zip(cost.rows, cost.seconds, strict=True):
        print(f"  step of {rows:3d} rows ÷ 1 row: {seconds / cost.seconds[0]:.2f}")
    for temperature in (0.0, 1.0):
        for al in LENGTHS:
            ratios, lengths = [], []
            for seed in range(5):
                prompt = [(i * 31 + seed) % 5000 for i in range(64)]
                params = sampling(temperature, seed, TOKENS)
                truth = Run(engine, prompt, params, off()).ids
                engine.drafters[f"al{al}"].learn(prompt, truth)
                plain = Run(engine, prompt, params, off())
                drafted = Run(engine, prompt, params, SpeculativeParams(drafter=f"al{al}"))
                assert drafted.ids == plain.ids == truth, "the text changed"
                ratios.append(plain.tpot(TOKENS) / drafted.tpot(TOKENS))
                lengths.append(drafted.acceptance_length)
            speedup, length = statistics.median(ratios), statistics.mean(lengths)
            print(
                f"  replay T={temperature:.0f} AL {length:.2f}: speedup {speedup:.2f}, "
                f"÷ AL {speedup / length:.2f}, same text: yes"
            )

    drafting()
    quantized()


if __name__ == "__main__":
    main()
