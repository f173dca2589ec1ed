"""AL of a DFlash drafter by the tokens of context before the answer, with its window and others.

    python benchmarks/draft_windows.py MODEL DRAFTER [--contexts 100 800 …] [--windows 0 512 …]
        [--questions 12]

The same questions stand behind so many tokens of Python's language reference, which every Python
carries. Every round drafts 7 tokens at T=0, nothing is cached, and a text counts until it starts to
repeat itself. Beside each AL stands its ratio to that of the shortest context, with the 95%
interval over the questions. Of `--windows`, 0 is all of the context. The texts must not depend on
the window; the script fails where one does.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import sys
from pathlib import Path

import numpy as np
from ablation import between
from harness import machine, table
from prompts import QUESTIONS

from paceline import LLM, SamplingParams
from paceline.bench.turns import change_interval
from paceline.core import Round, SpeculationStats
from paceline.dataset.loops import loop_start
from paceline.llm import Result, encode_chat

ASK = "Read this first.\n\n{filler}\n\nNow leave that aside. {question}"


def asked(llm: LLM, question: str, context: int) -> list[int]:
    """A prompt of about `context` tokens, or the question alone where it is longer."""
    document = llm.tokenizer("\n\n".join(pydoc_data.topics.topics.values()))["input_ids"]
    bare = len(encode_chat(llm.tokenizer, _talk(ASK.format(filler="", question=question))))
    if bare >= context:
        return encode_chat(llm.tokenizer, _talk(question))
    filler = llm.tokenizer.decode(document[: context - bare])
    return encode_chat(llm.tokenizer, _talk(ASK.format(filler=filler, question=question)))


def _talk(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def before_loop(rounds: list[Round], ids: list[int]) -> list[Round]:
    end = loop_start(ids)
    return [round for round in rounds if end is None or round.position < end]


def measured(llm: LLM, prompts: list[list[int]], tokens: int) -> list[np.ndarray]:
    """The tokens committed by rounds with a draft, and those rounds, of each drafter of `llm`:
    [prompts, 2]."""
    params = SamplingParams(temperature=0, max_tokens=tokens)
    answers = {
        name: llm.generate(prompts, params, {"drafter": name}) for name in llm.engine.drafters
    }
    texts = [[answer.token_ids for answer in side] for side in answers.values()]
    if any(text != texts[0] for text in texts):
        raise SystemExit("the window changed a text")
    return [np.array([counted(answer) for answer in side]) for side in answers.values()]


def counted(answer: Result) -> tuple[int, int]:
    stats = SpeculationStats.of(before_loop(answer.choices[0].rounds, answer.token_ids))
    return stats.accepted_tokens + stats.draft_rounds, stats.draft_rounds


def acceptance_length(counts: np.ndarray) -> float:
    tokens, rounds = counts.sum(0)
    return float(tokens / rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("drafter", help="a folder, a hub id or a name")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 800, 2000, 5000])
    parser.add_argument("--windows", type=int, nargs="+", default=[0], metavar="TOKENS")
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    others = [f"w{window}=dflash:{args.drafter},window={window}" for window in args.windows]
    drafters = [f"trained=dflash:{args.drafter}", *others]
    llm = LLM(
        args.model, drafters, draft_policy="fixed:7", prefix_cache=False, max_num_seqs=4,
        dtype=args.dtype, max_model_len=max(args.contexts) + args.tokens + 100,
    )  # fmt: skip
    trained = llm.engine.drafters["trained"].window
    rows, first = [], None
    for context in args.contexts:
        prompts = [asked(llm, question, context) for question in QUESTIONS[: args.questions]]
        sides = measured(llm, prompts, args.tokens)
        first = sides if first is None else first
        cells = []
        for before, counts in zip(first, sides, strict=True):
            length = acceptance_length(counts)
            share = length / acceptance_length(before)
            cells.append(f"{length:.2f}, {between(share, change_interval(before, counts))}")
        mean = sum(map(len, prompts)) / len(prompts)
        rows.append((f"{mean:.0f}", *cells, "; ".join(f"{c[:, 1].sum():.0f}" for c in sides)))
        print(f"{context}: {rows[-1]}", file=sys.stderr, flush=True)
    shown = [f"window of {window or 'all'}" for window in args.windows]
    table(
        f"{Path(args.drafter).name} for {args.model} in {args.dtype}, {args.questions} questions, "
        f"up to {args.tokens} tokens, T=0 ({machine()})",
        ["prompt tokens", f"AL, ÷ the first, window of {trained}", *shown, "rounds of each"],
        rows,
    )


if __name__ == "__main__":
    main()
