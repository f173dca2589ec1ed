"""AL of a DFlash drafter by the tokens of context before the answer, with its window and without.

    python benchmarks/draft_windows.py MODEL DRAFTER [--contexts 100 800 …] [--questions 12]

The same questions stand behind so many tokens of Python's language reference, which every Python
carries. Every round drafts 7 tokens at T=0, nothing is cached, and a text counts until it starts to
repeat itself. The texts must not depend on the window; the script fails where one does.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import sys
from pathlib import Path

from harness import machine, table
from prompts import QUESTIONS

from paceline import LLM, SamplingParams
from paceline.core import Round, SpeculationStats
from paceline.dataset.loops import loop_start
from paceline.llm import encode_chat

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


def measured(llm: LLM, prompts: list[list[int]], tokens: int) -> tuple[list[float], list[int]]:
    """AL and rounds of each drafter of `llm` over the same prompts."""
    params = SamplingParams(temperature=0, max_tokens=tokens)
    answers = {
        name: llm.generate(prompts, params, {"drafter": name}) for name in llm.engine.drafters
    }
    texts = [[answer.token_ids for answer in side] for side in answers.values()]
    if any(text != texts[0] for text in texts):
        raise SystemExit("the window changed a text")
    sides = [
        SpeculationStats.of(
            round
            for answer in side
            for round in before_loop(answer.choices[0].rounds, answer.token_ids)
        )
        for side in answers.values()
    ]
    return [side.acceptance_length or 1.0 for side in sides], [side.draft_rounds for side in sides]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("drafter", help="a folder, a hub id or a name")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 800, 2000, 5000])
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    drafters = [f"window=dflash:{args.drafter}", f"all=dflash:{args.drafter},window=0"]
    llm = LLM(
        args.model, drafters, draft_policy="fixed:7", prefix_cache=False, max_num_seqs=4,
        dtype=args.dtype, max_model_len=max(args.contexts) + args.tokens + 100,
    )  # fmt: skip
    window = llm.engine.drafters["window"].window
    rows = []
    for context in args.contexts:
        prompts = [asked(llm, question, context) for question in QUESTIONS[: args.questions]]
        (bounded, whole), rounds = measured(llm, prompts, args.tokens)
        mean = sum(map(len, prompts)) / len(prompts)
        rows.append((f"{mean:.0f}", bounded, whole, bounded / whole, "; ".join(map(str, rounds))))
        print(f"{context}: {rows[-1]}", file=sys.stderr, flush=True)
    table(
        f"{Path(args.drafter).name} for {args.model} in {args.dtype}, {args.questions} questions, "
        f"up to {args.tokens} tokens, T=0 ({machine()})",
        [
            "prompt tokens",
            f"AL, window of {window}",
            "AL, all of the context",
            "÷",
            "rounds of each",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
