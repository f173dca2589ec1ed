"""int8 against bfloat16: the time of a step, the cost in quality and in a drafter's acceptance.

    python benchmarks/int8.py speed MODEL… [--repeats 30]
    python benchmarks/int8.py quality MODEL… [--windows 20] [--brief]
    python benchmarks/int8.py acceptance TARGET DRAFTER

speed: steps of both networks and pure reads of their weights take turns in one process, over a
context of 128 tokens, head and logits included. Other work on the machine only ever makes a step
slower, so a ratio is one of best times; the median of the paired ratios stands beside it. The bound
of a step is a pure read of its weights, or its products at twice the speed of bfloat16 products in
registers (int8 instructions multiply twice as many numbers), whichever takes longer.

quality: perplexity on this repository's own documentation and code, with each kind of linear layer
alone in int8, and alone left in bfloat16; --brief takes all at once only. The error is the standard
error of the paired difference.

acceptance: the same target with the drafter's network in bfloat16 and in int8; a draft model or a
DFlash folder. A drafter that overfit_drafter.py wrote knows the bfloat16 target's text only.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import torch
from harness import machine, table
from kernels import Measured, batch_of, interleave, products_in_registers
from prompts import encoded

from paceline import LLM, SamplingParams
from paceline.bench.turns import ratio
from paceline.engine.quality import Reading, read, windows
from paceline.models.batch import BLOCK_SIZE
from paceline.models.dflash.checkpoint import is_drafter
from paceline.models.loader import load_model
from paceline.models.native_network import NativeNetwork
from paceline.models.quantized import INT8, LINEARS, UNQUANTIZED, Recipe

CONTEXT, WINDOW = 128, 512
ROWS = (1, 2, 3, 4, 8, 16, 32)
TARGET_LINEARS = [name for name in LINEARS if name != "context"]
ROOT = Path(__file__).parents[1]


def build(name: str, recipe: Recipe, positions: int) -> NativeNetwork:
    loaded = load_model(name)
    return NativeNetwork(loaded.config, loaded.weights, positions, recipe)


def speed(name: str, repeats: int) -> list[list[object]]:
    networks = {
        "bf16": build(name, UNQUANTIZED, CONTEXT),
        "int8": build(name, INT8, CONTEXT),
    }
    peak, operations = products_in_registers(networks["int8"])
    steps = {("peak", 0): peak}
    for number, network in networks.items():
        network.allocate_kv(CONTEXT // BLOCK_SIZE)
        steps[number, 0] = Measured(network.read_weights)
        for rows in ROWS:
            batch = batch_of(rows, CONTEXT, network.vocab_size, rows)
            steps[number, rows] = Measured(lambda n=network, b=batch: n.forward(b))
    interleave(dict(sorted(steps.items(), key=lambda item: item[0][1])), repeats)
    weights = networks["bf16"].streamed_bytes / 2
    row = 2 * weights / (2 * operations / peak.best)  # seconds that a row's products take
    lines = []
    for rows in (0, *ROWS):
        bf16, int8 = steps["bf16", rows], steps["int8", rows]
        lines.append(
            [
                Path(name).name,
                rows or "pure read",
                f"{bf16.best * 1e3:.2f}",
                f"{int8.best * 1e3:.2f}",
                int8.best / bf16.best,
                ratio(int8.times, bf16.times),
                max(steps["int8", 0].best, rows * row) / int8.best,
                int8.best / steps["int8", 1].best,
            ]
        )
    return lines


def quality(name: str, most: int, brief: bool) -> list[list[object]]:
    docs = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    rooms = [ROOT / "src" / "paceline" / room for room in ("engine", "drafters", "server")]
    code = "\n".join(path.read_text() for room in rooms for path in sorted(room.glob("*.py")))
    texts = windows(load_model(name).tokenizer, [docs, code], WINDOW, most)

    def reading(recipe: Recipe) -> Reading:
        gc.collect()
        return read(build(name, recipe, WINDOW), texts)

    reference = reading(UNQUANTIZED)
    everything = frozenset(TARGET_LINEARS)
    recipes = {"all in int8": INT8}
    for linear in () if brief else TARGET_LINEARS:
        recipes[f"only {linear}"] = Recipe("int8", frozenset({linear}))
        recipes[f"all but {linear}"] = Recipe("int8", everything - {linear})
    lines = []
    for label, recipe in recipes.items():
        ours = reading(recipe)
        found, change = ours.against(reference), ours.losses - reference.losses
        error = float(change.std()) / len(change) ** 0.5
        lines.append(
            [
                Path(name).name,
                label,
                f"{found.perplexity:.3f}",
                f"{100 * found.change:+.2f} ± {100 * error:.2f} %",
                f"{100 * found.agreement:.1f} %",
            ]
        )
        print(*lines[-1], flush=True)
    return [[Path(name).name, "bfloat16", f"{found.reference:.3f}", "", ""], *lines]


def acceptance(target: str, drafter: str) -> list[list[object]]:
    lines: list[list[object]] = []
    for numbers in ("bf16 + bf16", "bf16 + int8", "int8 + int8"):
        of_target, of_drafter = numbers.split(" + ")
        own = "int8" if of_drafter == "int8" else "none"
        block = is_drafter(Path(drafter))
        spec = f"d={drafter}" if block else f"d=draft_model:{drafter},min_token_prob=0"
        spec += f",max_draft_len=4,quantize={own}"
        quantize = "int8" if of_target == "int8" else None
        llm = LLM(target, spec, quantize=quantize, draft_policy="fixed", max_model_len=1024)
        params = SamplingParams(temperature=0, max_tokens=128)
        llm.generate(encoded(llm.tokenizer, "code"), params)
        stats = llm.engine.stats()
        length = 1 + stats.speculation.accepted_tokens / stats.speculation.draft_rounds
        first = float(str(lines[0][2])) if lines else length
        lines.append([numbers, stats.speculation.draft_rounds, length, length / first])
        print(*lines[-1], flush=True)
        del llm
        gc.collect()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("speed", "quality", "acceptance"))
    parser.add_argument("models", nargs="+", help="what `paceline serve` takes")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--windows", type=int, default=20, help=f"of {WINDOW} tokens, by text")
    parser.add_argument("--brief", action="store_true", help="all linear layers at once only")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    where = f"{options.threads} threads ({machine()})"
    if options.what == "speed":
        header = ["model", "rows", "bf16 ms", "int8 ms", "int8 ÷ bf16", "median of pairs",
                  "share of the int8 bound", "÷ 1 row"]  # fmt: skip
        lines = [line for name in options.models for line in speed(name, options.repeats)]
        table(f"A step in int8 ÷ in bf16, {where}", header, lines)
    elif options.what == "quality":
        header = ["model", "linear layers", "perplexity", "change", "greedy agreement"]
        how = (options.windows, options.brief)
        lines = [line for name in options.models for line in quality(name, *how)]
        table("Perplexity in int8", header, lines)
    else:
        header = ["target + drafter", "rounds", "AL incl. bonus", "÷ the first"]
        table(f"Acceptance, {where}", header, acceptance(*options.models))


if __name__ == "__main__":
    main()
