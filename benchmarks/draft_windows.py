"""AL of a DFlash drafter by the tokens of context before the answer, with its window and without.

    python benchmarks/draft_windows.py MODEL DRAFTER [--contexts 100 800 …] [--questions 12]

The same questions stand behind so many tokens of Python's language reference, which every Python
carries. Every round drafts 7 tokens at T=0, nothing is cached, and a text counts until it starts to
repeat itself. The texts must not depend on the window; the script fails where one does.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("drafter", help="a folder, a hub id or a name")
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 800, 2000, 5000])
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    drafters = [f"window=dflash:{args.drafter}", f"all=dflash:{args.drafter},window=0"]
    llm = LLM(
        args.model, drafters, draft_policy="fixed:7", prefix_cache=False, max_num_seqs=4,
        max_model_len=max(args.contexts) + args.tokens + 100,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=args.tokens)
    rows = []
    for context in args.contexts:
        prompts = [asked(llm, question, context) for question in QUESTIONS[: args.questions]]
        answers = {
            name: llm.generate(prompts, params, {"drafter": name}) for name in llm.engine.drafters
        }
        texts = [[answer.token_ids for answer in side] for side in answers.values()]
        if texts[0] != texts[1]:
            raise SystemExit(f"the window changed a text at {context} tokens of context")
        lengths, rounds = [], 0
        for side in answers.values():
            kept = [
                round
                for answer in side
                for round in before_loop(answer.choices[0].rounds, answer.token_ids)
            ]
            stats = SpeculationStats.of(kept)
            lengths.append(stats.acceptance_length or 1.0)
            rounds = stats.draft_rounds
        mean = sum(map(len, prompts)) / len(prompts)
        rows.append((f"{mean:.0f}", *lengths, lengths[0] / lengths[1], rounds))
    window = llm.engine.drafters["window"].window
    table(
        f"{Path(args.drafter).name} for {args.model}, {args.questions} questions, up to "
        f"{args.tokens} tokens, T=0 ({machine()})",
        ["prompt tokens", f"AL, window of {window}", "AL, all of the context", "÷", "rounds"],
        rows,
    )


if __name__ == "__main__":
    main()
