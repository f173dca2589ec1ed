"""Batched generation for training sets: tokens per second beside what the roofline allows.

    python benchmarks/synth.py APP.yaml [--rows 192] [--batches 16,64]

The roofline of a step: its products at the matmul peak, or the weights at the speed of a pure read
loop, whichever takes longer, and the running requests' KV at that speed. Prompt tokens are products
too. Peak and read loop are measured in this process, before and after.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import machine, table

from paceline.dataset.training_set import SPLITS, read_rows
from paceline.engine.peak import matmul_peak
from paceline.engine.startup import bandwidth_bound
from paceline.models.batch import KVSpec
from paceline.synth.answer import EngineAnswerer
from paceline.synth.app import load_app
from paceline.synth.job import SynthJob, prepare, read
from paceline.training.cost import target_operations


@dataclass(frozen=True, slots=True)
class Roof:
    """Operations per second, seconds to read the weights, and their bytes per second."""

    peak: float
    weights_seconds: float
    bandwidth: float

    @classmethod
    def measured(cls, answerer: EngineAnswerer) -> Roof:
        engine = answerer._engine
        bound = bandwidth_bound(engine)
        peak = matmul_peak(torch.bfloat16, "cpu", 1.0)
        return cls(peak, bound, engine.runner.network.streamed_bytes / bound)


def measure(job: SynthJob, batch: int) -> list[object]:
    answerer = job.engine(max_num_seqs=batch)
    before = Roof.measured(answerer)
    with tempfile.TemporaryDirectory() as folder:
        job.make(Path(folder) / "set", answerer)
        rows = [row for split in SPLITS for row in read_rows(Path(folder) / "set", split)]
    speed, after = answerer.speed(), Roof.measured(answerer)
    roof = max(before, after, key=lambda r: r.peak)
    config = job.asker.target.loaded.config
    head = 2.0 * config.vocab_size * config.hidden_size
    products = (target_operations(config, 1) + head) * speed.batch / roof.peak
    # A request's KV grows from its prompt to its whole length: half its answer in the mean.
    ends = [(row.spans[0][0] + row.spans[-1][1]) / 2 for row in rows]
    seen = sum(ends) / len(ends)
    spec = KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, 2)
    kv = speed.batch * seen * spec.bytes_per_token / roof.bandwidth
    step = max(products, roof.weights_seconds) + kv
    prompts = speed.prompt_tokens * target_operations(config, 1) / roof.peak
    allowed = speed.tokens / (speed.tokens / speed.batch * step + prompts)
    return [
        batch, f"{speed.batch:.1f}", speed.tokens, f"{speed.tokens_per_second:.0f}",
        f"{1e3 * products:.1f} / {1e3 * roof.weights_seconds:.1f} / {1e3 * kv:.1f}",
        f"{allowed:.0f}", f"{speed.tokens_per_second / allowed:.0%}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("app", type=Path)
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--batches", default="16,64")
    args = parser.parse_args()
    app = load_app(args.app).with_size(args.rows)
    job = prepare(app, read(app))
    rows = [measure(job, int(batch)) for batch in args.batches.split(",")]
    header = ("places", "mean batch", "tokens", "tokens/s", "ms: products / weights / KV",
              "roofline tokens/s", "share")  # fmt: skip
    table(f"synth, {args.app.stem}: {machine()}", header, rows)


if __name__ == "__main__":
    main()
