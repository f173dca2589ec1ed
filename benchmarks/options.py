"""Measure what usual sampling options cost: time per token with them and without, in turns.

python benchmarks/options.py MODEL [--rounds 7] [--tokens 96]

The options are chosen so that the text stays the same (a bias of 0, bans of tokens that the model
does not say, penalties too small to matter): the same tokens, the same drafts, only more work.
`min_tokens` also bans end tokens: where the text holds one, the table says that it differs.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

from harness import machine, table
from prompts import encoded

from paceline import LLM, SamplingParams
from paceline.bench.turns import in_turns, ratio_interval

TINY = 1e-6  # a penalty that changes no text


def options(vocab: int, tokens: int, said: set[int]) -> dict[str, dict[str, object]]:
    rare = tuple(token for token in range(100, vocab) if token not in said)[:2000]
    penalties = {
        "frequency_penalty": TINY,
        "presence_penalty": TINY,
        "repetition_penalty": 1 + TINY,
    }
    return {
        "nothing": {},
        "logit_bias, 300 entries": {"logit_bias": dict.fromkeys(range(300), 0.0)},
        "logit_bias, all tokens": {"logit_bias": dict.fromkeys(range(vocab), 0.0)},
        "three penalties": penalties,
        "2,000 stop ids, min_tokens": {"stop_token_ids": rare, "min_tokens": tokens},
        "300 biases, penalties, 2,000 stop ids": {
            "logit_bias": dict.fromkeys(range(300), 0.0),
            **penalties,
            "stop_token_ids": rare,
            "min_tokens": tokens,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    llm = LLM(args.model, "auto")  # the prefix cache spares the long prompt: only decoding is timed
    engine = llm.engine
    code = encoded(llm.tokenizer, "code")[0]
    long = (code * 200)[:6000]
    rows = []
    for name, prompt in (("code prompt", code), (f"prompt of {len(long)} tokens", long)):
        for drafts in ("off", "fixed:8"):
            rows += _rows(llm, name, prompt, drafts, args)
    header = ["", "drafts", "option", "speed ÷ without", "95%", "same text"]
    vocab = engine.vocab_size
    table(f"sampling options, {args.model}, vocabulary {vocab}, {args.tokens} tokens, T=0 "
          f"({machine()})", header, rows)  # fmt: skip


def _rows(
    llm: LLM, name: str, prompt: list[int], drafts: str, args: argparse.Namespace
) -> list[tuple[object, ...]]:
    texts: dict[str, list[int]] = {}

    def seconds(case: str, given: dict[str, object]) -> float:
        params = SamplingParams(
            temperature=0,
            max_tokens=args.tokens,
            ignore_eos=True,
            **given,  # type: ignore[arg-type]
        )
        wish = "off" if drafts == "off" else {"policy": drafts}
        times: list[float] = []
        texts[case] = []
        for delta in llm.stream(prompt, params, wish):
            texts[case] += delta.token_ids
            times.append(time.perf_counter())
        return times[-1] - times[0]

    seconds("nothing", {})
    cases = options(llm.engine.vocab_size, args.tokens, set(texts["nothing"]))
    sides = {case: partial(seconds, case, given) for case, given in cases.items()}
    times = in_turns(sides, args.rounds)
    rows: list[tuple[object, ...]] = []
    for case, measured in times.items():
        middle, low, high = ratio_interval(times["nothing"], measured)
        same = "yes" if texts[case] == texts["nothing"] else "NO"
        rows.append((name, drafts, case, f"{middle:.3f}", f"{low:.3f}–{high:.3f}", same))
    return rows


if __name__ == "__main__":
    main()
