"""Drafters that learnt from features of our engine, of transformers and of vLLM, beside each other.

    python benchmarks/three_ways.py MODEL SET [--vllm PYTHON] [--steps 40] [--seeds 3]
        [--init DRAFTER] [--texts 64] [--out FOLDER] [-- OPTION OF `paceline train` …]

SET is a folder of `paceline synth`. For each seed one drafter is trained through each way, in
turns: the same texts, blocks and steps, from random weights or from DRAFTER. Only the numbers
differ in which the target was computed. PYTHON is that of an environment with vLLM; without it
this way is left out. A fall out of domain keeps no drafter from being judged.

Every drafter then drafts along texts of the set that nobody trains on, round after round as in
serving by our engine: the first --texts of each part. Intervals are the 95% ones of the ratio to
the drafter of our engine's features and the same seed, by resampling the texts; over all seeds, a
text is drawn with its rounds of all of them. Runs that are finished in FOLDER are not made again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from harness import machine, table
from long_contexts import command
from objectives import LONGEST, NONE_BETTER, Pairs, compared, judge

from paceline.core import InvalidRequest
from paceline.dataset.training_set import read_manifest
from paceline.drafters.shipped import drafter_folder
from paceline.training.data import read_texts
from paceline.training.packs import Text

WAYS = {"paceline": "our engine", "transformers": "transformers", "vllm": "vLLM"}
PARTS = {
    "on task": ("held_out", "on_task"),
    "replay": ("held_out", "replay"),
    "neighbour": ("neighbour", "neighbour"),
    "foreign": ("foreign", "foreign"),
}  # the splits and parts of a set's rows
Results = dict[int, dict[str, Pairs]]  # by seed and part: tokens and rounds, [texts, 2]


def train(args: argparse.Namespace, way: str, seed: int, folder: Path) -> Path:
    """Train a drafter on the features of `way`. Return its folder, or that of --init where nothing
    was better."""
    run = folder / f"{way}-{seed}"
    kept, finished = run / "drafter", run / "finished"
    if not finished.exists():
        python = ["--target-python", args.vllm] if way == "vllm" else []
        init = ["--init", args.init, "--regression", "1"] if args.init else []
        said = command(
            "train", args.set, "--model", args.model, "--target-engine", way, *python, *init,
            "--steps", str(args.steps), "--eval-every", str(args.steps), "--seed", str(seed),
            "--out", str(run), *args.options,
        )  # fmt: skip
        (run / "log.txt").write_text(said)
        finished.touch()
    if kept.exists():
        return kept
    if args.init and NONE_BETTER in (run / "log.txt").read_text():
        print(f"{WAYS[way]}, seed {seed}: {NONE_BETTER}, so the drafter stays")
        return drafter_folder(args.init)
    raise SystemExit(f"{run}: no drafter was kept")


def unseen(args: argparse.Namespace) -> dict[str, list[Text]]:
    """Return the texts that are judged, by the part of the set. A part without any is left out."""
    texts: dict[str, list[Text]] = {}
    counts = read_manifest(Path(args.set)).counts
    for name, (split, part) in PARTS.items():
        if counts.get(f"rows_{part}"):
            try:
                found = read_texts([Path(args.set)], split, LONGEST, parts=(part,))
            except InvalidRequest:
                continue  # a small set may hold out none of its plain chat
            texts[name] = found[: args.texts]
    return texts


def rows_of(results: dict[str, Results]) -> list[list[str]]:
    """Return the lines of the table: each way by seed, and over all seeds."""
    rows, engine = [], results["paceline"]
    for way, seeds in results.items():
        for seed, parts in seeds.items():
            cells = [compared(own, engine[seed][name]) for name, own in parts.items()]
            rows.append([WAYS[way], str(seed), *cells])
        if len(seeds) > 1:
            cells = [compared(pooled(seeds, name), pooled(engine, name)) for name in seeds[0]]
            rows.append([WAYS[way], "all", *cells])
    return rows


def pooled(results: Results, part: str) -> Pairs:
    """Return the tokens and rounds of each text over all seeds, [texts, 2]."""
    first, *others = (parts[part] for parts in results.values())
    return sum(others, start=first)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("set")
    parser.add_argument("--vllm", metavar="PYTHON", help="the Python of an environment with vLLM")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--init", help="a drafter to go on from; else random weights")
    parser.add_argument("--texts", type=int, default=64, help="of each part that are judged")
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    end = [*sys.argv, "--"].index("--")
    args = parser.parse_args(sys.argv[1:end])
    args.options, args.sets, args.device = sys.argv[end + 1 :], [args.set], "cpu"
    for name in ("steps", "seeds", "texts"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: got {getattr(args, name)}; expected at least 1")
    ways = [way for way in WAYS if way != "vllm" or args.vllm]
    if not args.vllm:
        print("vLLM is left out: --vllm names no Python that has it", file=sys.stderr)
    texts = unseen(args)
    results: dict[str, Results] = {way: {} for way in ways}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        for seed in range(args.seeds):
            drafters = {}
            for way in ways[seed % len(ways) :] + ways[: seed % len(ways)]:
                drafters[way] = train(args, way, seed, folder)
            for way, drafter in drafters.items():
                judged = judge(args, drafter, texts)
                results[way][seed] = {n: found.likeliest_pairs for n, found in judged.items()}
                print(f"{WAYS[way]}, seed {seed}: done", file=sys.stderr, flush=True)
    start = f"from {args.init}" if args.init else "from random weights"
    counts = ", ".join(f"{len(group)} {name}" for name, group in texts.items())
    title = f"{args.model}, {args.steps} steps {start}; texts: {counts} ({machine()})"
    header = ["features of", "seed", *(f"AL, {name} (÷ our engine)" for name in texts)]
    table(title, header, rows_of(results))


if __name__ == "__main__":
    main()
