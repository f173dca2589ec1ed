"""AL of a drafter along the same texts, behind long contexts and behind the shortest one.

    python benchmarks/same_texts.py MODEL DRAFTER SET [--contexts 100 800 …]

Behind long contexts a target writes other answers, which may be harder to draft. So the answers
behind each context of draft_windows.py are judged behind the shortest as well: the drafter drafts
along them, round after round as in serving, and only what it has seen before differs. It sees all
of the context. An answer counts until it starts to repeat itself. SET is a folder of `paceline
synth` for MODEL, which a trainer needs to be opened; nothing is learnt.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from ablation import between
from draft_windows import acceptance_length, asked
from harness import machine, table
from long_contexts import judge, judge_of
from prompts import QUESTIONS

from paceline import LLM, SamplingParams
from paceline.bench.turns import change_interval
from paceline.dataset.loops import loop_start
from paceline.training.config import TrainConfig
from paceline.training.packs import Text
from paceline.training.trainer import Trainer

SHORTEST = 10  # tokens of an answer that is judged


def opened(args: argparse.Namespace) -> Trainer:
    config = TrainConfig(
        model=args.model, sets=(args.set,), out=str(Path(args.set) / "none"), init=args.drafter,
        steps=1, head_tokens=1, features_gb=0.0, max_tokens=max(args.contexts) + args.tokens + 100,
    )  # fmt: skip
    return judge_of(config)


def answers(llm: LLM, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    results = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens))
    return [result.token_ids[: loop_start(result.token_ids)] for result in results]


def texts(prompts: list[list[int]], said: list[list[int]], first: int) -> list[Text]:
    """The texts of the answers that are long enough, numbered from `first` on."""
    judged: list[Text] = []
    for prompt, answer in zip(prompts, said, strict=True):
        if len(answer) >= SHORTEST:
            ids = torch.tensor(prompt + answer)
            spoken = torch.arange(len(ids)) >= len(prompt)
            judged.append(Text(first + len(judged), ids, spoken, "", 0.0))
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("drafter", help="a folder, a hub id or a name")
    parser.add_argument("set")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 800, 2000, 5000])
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    longest = max(args.contexts) + args.tokens + 100
    llm = LLM(args.model, None, prefix_cache=False, max_num_seqs=4, max_model_len=longest)
    trainer = opened(args)
    short = [asked(llm, question, args.contexts[0]) for question in QUESTIONS]
    rows, number = [], 1 << 20  # behind the numbers of the set's own texts
    for context in args.contexts:
        prompts = [asked(llm, question, context) for question in QUESTIONS]
        said = answers(llm, prompts, args.tokens)
        sides = []
        for asked_so in (prompts, short):
            judged = texts(asked_so, said, number)
            number += len(judged)
            sides.append(judge([trainer], judged)[0])
        behind, before = map(acceptance_length, sides)
        ratio = between(behind / before, change_interval(sides[1], sides[0]))
        rows.append((context, len(judged), f"{behind:.2f}", f"{before:.2f}", ratio))
        print(rows[-1], file=sys.stderr, flush=True)
    table(
        f"{Path(args.drafter).name} for {args.model}, answers of up to {args.tokens} tokens, T=0 "
        f"({machine()})",
        ["prompt tokens", "answers", "AL", "AL of the same answers behind the shortest", "÷"],
        rows,
    )


if __name__ == "__main__":
    main()
