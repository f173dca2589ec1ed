"""AL of a drafter by tokens of context, before and after it learns behind long contexts.

    python benchmarks/long_contexts.py MODEL --out FOLDER [--contexts 1000 4000 8000 16000]
        [--learn 8000 16000] [--steps 60] [--more 24] [-- OPTION OF `paceline train` …]

The application is apps/support.yaml with its system prompt behind the last tokens of Python's
language reference, so that the window of a draft sees the same words at each length. `paceline
synth` makes a set of answers at each, to the same customers; every fifth phrase of theirs is held
out. A drafter learns --steps steps behind the shortest context. From there one run goes on for
--more steps behind that context still, and one behind each length of --learn.

Each drafter then drafts along the held-out answers of every length, round after round as in
serving, and along those behind another part of the reference, at the lengths of --learn. Intervals
are the 95% ones of the ratio to the run that went on behind the shortest context, by resampling the
answers. Sets and runs that are finished in FOLDER are not made again.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from harness import HERE, machine, table
from objectives import NONE_BETTER, Pairs, compared

from paceline.models.loader import load_model
from paceline.training.config import TrainConfig
from paceline.training.data import read_texts
from paceline.training.evaluation import packs_of, walk
from paceline.training.packs import Text
from paceline.training.run import prepare
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers

APPS = HERE.parent / "apps"
CUSTOMERS = ("phrases", "as-typed")  # sources that the target has no part in
ROOM = 1024  # tokens for the application's own prompt, the customer and the answer
SPLITS = ("train", "held_out")
WHOLE = 1 << 20  # tokens, or anchors: none is left out


@dataclass(frozen=True)
class Place:
    """A context: the last tokens of the reference, or of its first half."""

    tokens: int
    other: bool = False

    def __str__(self) -> str:
        return f"{self.tokens}{' of another part' if self.other else ''}"

    def words(self, model: str) -> str:
        tokenizer = load_model(model).tokenizer
        ids = tokenizer("\n\n".join(pydoc_data.topics.topics.values()))["input_ids"]
        end = len(ids) // 2 if self.other else len(ids)
        if end < self.tokens:
            raise SystemExit(f"{self}: there are {end} tokens")
        return tokenizer.decode(ids[end - self.tokens : end])


def command(name: str, *words: str) -> str:
    """Run a command and return what it said; a run that found nothing better did not fail."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline.cli", name, *words], capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    if done.returncode and NONE_BETTER not in said:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{said[-2000:]}")
    return said


def make_set(args: argparse.Namespace, place: Place, split: str) -> Path:
    """Make the answers to learn from (split `train`), or the held-out ones, behind a context."""
    folder = args.out / f"{split}-{str(place).replace(' ', '-')}"
    if (folder / "finished").exists():
        return folder
    app = yaml.safe_load((APPS / "support.yaml").read_text())
    written = yaml.safe_load((APPS / "support" / "phrases.yaml").read_text())
    held = written["phrases"][::5]
    others = [phrase for phrase in written["phrases"] if phrase not in held]
    written["phrases"] = others if split == "train" else held
    used = " ".join(written["phrases"])
    written["slots"] = {n: texts for n, texts in written["slots"].items() if f"{{{n}}}" in used}
    phrases, described = (folder.with_suffix(suffix) for suffix in (".phrases.yaml", ".yaml"))
    phrases.write_text(json.dumps(written))
    sources = [source for source in app["sources"] if source["name"] in CUSTOMERS]
    sources[0]["path"] = str(phrases.resolve())
    app |= {
        "system": f"{place.words(args.model)}\n\n{app['system']}",
        "sources": sources,
        "mix": {"on_task": 1.0},
        "context": place.tokens + ROOM,
        "held_out": 0.0 if split == "train" else 0.5,  # the most; all are judged
        "size": {"rows": args.texts if split == "train" else args.held_texts},
    }
    described.write_text(json.dumps(app))
    command(
        "synth", str(described), "--out", str(folder), "--model", args.model,
        "--max-num-seqs", "16", *args.quantized,
    )  # fmt: skip
    (folder / "finished").touch()
    return folder


def train(args: argparse.Namespace, place: Place, steps: int, init: Path | None = None) -> Path:
    """Train a drafter behind a context; return its folder, or `init` where nothing was better."""
    learnt, held = (make_set(args, place, split) for split in SPLITS)
    run = args.out / ("before" if init is None else f"after-{place}")
    said = command(
        "train", str(learnt), "--held-out", f"held={held}", "--model", args.model, "--out",
        str(run), "--steps", str(steps), "--window", str(args.window), "--max-tokens", str(WHOLE),
        *([] if init is None else ["--init", str(init)]), *args.quantized, *args.options,
    )  # fmt: skip
    print(f"{run.name}: {said[-300:]}", file=sys.stderr, flush=True)
    return init if init is not None and NONE_BETTER in said else run / "drafter"


def opened(args: argparse.Namespace, drafter: Path) -> Trainer:
    learnt, held = (str(args.out / f"{split}-{args.contexts[0]}") for split in SPLITS)
    config = TrainConfig(
        model=args.model, sets=(learnt,), held_out={"held": held}, out=str(args.out / "none"),
        init=str(drafter), steps=1, head_tokens=1, features_gb=0.0, quantize=args.quantize,
    )  # fmt: skip
    return judge_of(config)


def judge_of(config: TrainConfig) -> Trainer:
    """A trainer whose drafter judges, and learns nothing."""
    trainer = prepare(config, Workers("cpu"))
    trainer.form.eval()
    return trainer


@torch.no_grad()
def judge(trainers: Sequence[Trainer], texts: Sequence[Text]) -> list[Pairs]:
    """Return for each drafter the tokens and the rounds along each text, [texts, 2]."""
    target, shape = trainers[0].target, trainers[0].form.config
    drafts = shape.block_size, shape.mask_token_id, target.window
    found: list[list[tuple[int, int]]] = [[] for _ in trainers]
    for pack in packs_of(
        texts, WHOLE, target.read_all, *drafts, micro=8, micro_tokens=None, padded=True
    ):
        for trainer, pairs in zip(trainers, found, strict=True):
            accepted = trainer.form.right(pack).cumprod(1).sum(1)
            for first, last in pack.blocks:
                visited = walk(accepted[first:last])
                pairs.append((int((1 + accepted[first:last][visited]).sum()), len(visited)))
    return [np.array(pairs, dtype=np.float64) for pairs in found]


def cells(pairs: Sequence[Pairs]) -> Iterator[str]:
    """Yield AL before, of the run behind the shortest context, and of the others beside that."""
    yield from (f"{tokens / rounds:.2f}" for tokens, rounds in (own.sum(0) for own in pairs[:2]))
    yield from (compared(own, pairs[1]) for own in pairs[2:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True, help="keep sets and runs in this folder")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 4000, 8000, 16000])
    parser.add_argument("--learn", type=int, nargs="+", default=[8000, 16000])
    parser.add_argument("--steps", type=int, default=60, help="behind the shortest context")
    parser.add_argument("--more", type=int, default=24, help="steps of each run that goes on")
    parser.add_argument("--texts", type=int, default=96, help="to learn from, at each length")
    parser.add_argument("--held-texts", type=int, default=32)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--quantize", choices=("int8",))
    end = [*sys.argv, "--"].index("--")
    args = parser.parse_args(sys.argv[1:end])
    args.options = sys.argv[end + 1 :]
    args.quantized = [] if args.quantize is None else ["--quantize", args.quantize]
    args.out.mkdir(parents=True, exist_ok=True)
    learnt = [Place(tokens) for tokens in (args.contexts[0], *args.learn)]
    before = train(args, learnt[0], args.steps)
    drafters = [before, *(train(args, place, args.more, before) for place in learnt)]
    places = [*map(Place, args.contexts), *(Place(tokens, other=True) for tokens in args.learn)]
    sets = [make_set(args, place, "held_out") for place in places]
    trainers, rows = [opened(args, drafter) for drafter in drafters], []
    for place, folder in zip(places, sets, strict=True):
        texts = read_texts([folder], "held_out", WHOLE)
        texts += read_texts([folder], "train", WHOLE, first=len(texts))
        prompt = np.mean([int(text.said.int().argmax()) for text in texts])
        rows.append((str(place), f"{prompt:.0f}", str(len(texts)), *cells(judge(trainers, texts))))
        print(*rows[-1], sep=", ", file=sys.stderr, flush=True)
    plan = f"{args.steps} steps behind {learnt[0]}, then {args.more}, window {args.window}"
    options = shlex.join([*args.quantized, *args.options])
    header = ["tokens of context", "of the prompt", "answers", "AL before"]
    header += [f"AL, then behind {place}" for place in learnt]
    header[5:] = [f"{name} (÷ behind {learnt[0]})" for name in header[5:]]
    table(f"{args.model}: {plan} {options} ({machine()})", header, rows)


if __name__ == "__main__":
    main()
