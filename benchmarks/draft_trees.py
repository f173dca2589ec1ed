"""Measure acceptance length and speed of draft trees beside chains, and of suffix look-ups.

    python benchmarks/draft_trees.py MODEL DRAFTER [--nodes 7,15,31] [--policy fixed] [--prompts 12]

One engine, requests alone at temperature 0, chat prompts, all variants of a prompt in turns. The
acceptance length includes the bonus token. It does not depend on the machine under `fixed`; the
times do. Every text must be that without speculation. Look-ups remember no other answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from harness import machine, table
from prompts import encoded
from speculation import Run

from paceline import LLM, SamplingParams
from paceline.core import SpeculationStats, SpeculativeParams

CHAIN, AR, SUFFIX = "chain", "off", "suffix"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument(
        "drafter", help="a DFlash drafter: a folder, or the name of a model that has a shipped one"
    )
    parser.add_argument("--nodes", default="7,15,31")
    parser.add_argument("--policy", default="fixed")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    trees = [int(nodes) for nodes in args.nodes.split(",")]
    llm = LLM(
        args.model,
        [f"d=dflash:{args.drafter}", SUFFIX],
        draft_policy=args.policy,
        draft_tree=max(trees),
        prefix_cache=False,
        max_model_len=1024,
    )
    variants = [AR, SUFFIX, CHAIN, *map(str, trees)]
    params = SamplingParams(temperature=0, max_tokens=args.tokens)
    stats = {name: SpeculationStats() for name in variants}
    rates: dict[str, list[float]] = {name: [] for name in variants}
    seconds = dict.fromkeys(variants, 0.0)
    tokens = same = 0
    for index, prompt in enumerate(encoded(llm.engine.tokenizer, "chat")[: args.prompts]):
        texts = []
        turn = index % len(variants)
        for name in [*variants[turn:], *variants[:turn]]:
            run = one(llm, prompt, params, name)
            stats[name] += run.stats
            seconds[name] += run.marks[-1][0] - run.marks[0][0]
            rates[name].append(run.tpot(len(run.ids)))
            texts.append(run.ids)
        tokens += len(texts[0]) - 1
        same += all(text == texts[0] for text in texts)
    report(args, variants, stats, rates, seconds, tokens, same)


def one(llm: LLM, prompt: Sequence[int], params: SamplingParams, name: str) -> Run:
    room = llm.engine.drafting.room
    assert room is not None
    room.nodes = int(name) if name.isdecimal() else 0
    wishes = {
        AR: SpeculativeParams(off=True),
        SUFFIX: SpeculativeParams(drafter=SUFFIX),
    }.get(name, SpeculativeParams(drafter="d"))
    return Run(llm.engine, prompt, params, wishes)


def report(args, variants, stats, rates, seconds, tokens, same) -> None:
    rows = []
    for name in variants:
        ratios = sorted(a / b for a, b in zip(rates[CHAIN], rates[name], strict=True))
        al, depth = stats[name].acceptance_length, stats[name].draft_length
        rows.append(
            (
                name,
                "-" if al is None else f"{al:.3f}",
                "-" if depth is None else f"{depth:.2f}",
                f"{tokens / seconds[name]:.1f}",
                f"{seconds[CHAIN] / seconds[name]:.3f}",
                f"{ratios[len(ratios) // 2]:.3f}",
            )
        )
    print(machine())
    asked = len(rates[CHAIN])
    title = f"{args.model}, {args.policy}, {asked} chat prompts of {args.tokens} tokens"
    header = ("drafts", "AL incl. bonus", "depth", "tokens/s", "speed ÷ chain", "median")
    table(f"{title}; {same} with one text", header, rows)


if __name__ == "__main__":
    main()
