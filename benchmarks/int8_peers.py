"""int8 beside OpenVINO GenAI and vLLM, one request at a time: time per token, in turns in one run.

    python benchmarks/int8_peers.py MODEL --openvino PYTHON [--vllm PYTHON] [--drafter SPEC …]

OPENVINO is the Python of an environment with openvino-genai and optimum-intel; the model is
exported to int8 weights there once (activations are quantised as it runs). vLLM runs in bfloat16:
it wants int8 checkpoints made with tools of its own. A drafter is a spec as `paceline serve` takes
it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

from harness import Worker, machine, table
from prompts import encoded
from transformers import AutoTokenizer

from paceline.bench.turns import in_turns, ratio_interval

TOKENS, SHORT = 128, 16  # a TPOT is the difference of two runs, so that prompts don't count
ROUNDS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--openvino", required=True)
    parser.add_argument("--vllm")
    parser.add_argument("--drafter", action="append", default=[])
    parser.add_argument("--kind", default="code")
    parser.add_argument("--exported", type=Path, default=Path("build/openvino"))
    args = parser.parse_args()
    folder = export(args.model, args.openvino, args.exported)
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
    times = in_turns({name: timed(worker, prompts) for name, worker in workers.items()}, ROUNDS)
    base = times["OpenVINO GenAI, int8"]
    rows: list[list[object]] = []
    for name, own in times.items():
        middle, low, high = ratio_interval(base, own)
        rows.append([name, 1e3 * statistics.median(own), middle, f"{low:.2f} to {high:.2f}"])
    print(machine())
    header = ["engine", "ms per token", "speed ÷ OpenVINO", "95 %"]
    table(
        f"One request, {TOKENS - SHORT} tokens, {args.kind}: {Path(args.model).name}", header, rows
    )
    for worker in workers.values():
        worker.stop()


def export(model: str, python: str, folder: Path) -> Path:
    target = folder / Path(model).name
    if not (target / "openvino_model.xml").exists():
        command = Path(python).parent / "optimum-cli"
        options = ["--task", "text-generation-with-past", "--weight-format", "int8"]
        subprocess.run(
            [str(command), "export", "openvino", "-m", model, *options, str(target)], check=True
        )
    return target


def timed(worker: Worker, prompts: list[list[int]]) -> Callable[[], float]:
    """Seconds per token of the next prompt, whichever round it is: each worker sees them all."""
    turn = iter(range(10**6))

    def run() -> float:
        prompt = prompts[next(turn) % len(prompts)]
        short = worker.generate([prompt], SHORT)["seconds"]
        return (worker.generate([prompt], TOKENS)["seconds"] - short) / (TOKENS - SHORT)

    return run


if __name__ == "__main__":
    main()
