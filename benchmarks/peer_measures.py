"""Sessions of engines side by side, and their seconds in turns, for peers.py."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from decode import PROMPT_TOKENS, TOKENS, tpot
from harness import Worker
from peer_answers import FEWEST, counted, seconds_to
from peer_sides import Engine, Side
from prompts import encoded

from paceline.bench.turns import in_turns

BF16, INT8 = BASES = ("Paceline, bf16", "Paceline, int8")
AUTO = "Paceline, int8, auto"
LOADED_TOKENS = 64  # most of a request under load
PROMPTS = (512, 4096)

Times = dict[str, list[dict[str, float]]]
"""The turns of each side: its `own` seconds, and those of the bases by name."""


class Session:
    """The processes of some sides, which live as long as the session."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides = sides
        engines = dict.fromkeys(side.engine for side in sides)
        self._workers: dict[Engine, Worker] = {}
        try:
            for engine in engines:
                self._workers[engine] = engine.start()
        except BaseException:
            self.stop()
            raise

    def worker(self, side: Side) -> Worker:
        return self._workers[side.engine]

    def stop(self) -> None:
        for worker in self._workers.values():
            worker.stop()


def beside(times: Mapping[str, Sequence[float]], bases: Sequence[str]) -> Times:
    """Return the seconds of each side paired with those of `bases`."""
    found: Times = {}
    for name, own in times.items():
        pairs = zip(own, *(times[base] for base in bases), strict=True)
        found[name] = [dict(zip(("own", *bases), values, strict=True)) for values in pairs]
    return found


# -- one request, and prompts ---------------------------------------------------------------------


def alone(session: Session, args: argparse.Namespace) -> dict[str, Times]:
    """Return the seconds of a token, and of prompts, by the title of their table."""
    found = {}
    prompt = ids(PROMPT_TOKENS)
    per_token = {side.name: partial(tpot, session.worker(side), prompt) for side in session.sides}
    title = f"AR, a token at a context of {PROMPT_TOKENS} to {PROMPT_TOKENS + TOKENS}"
    found[title] = beside(in_turns(per_token, args.rounds), BASES)
    for length in PROMPTS:
        whole = {
            side.name: partial(prompt_seconds, session.worker(side), ids(length))
            for side in session.sides
        }
        found[f"a prompt of {length} tokens"] = beside(in_turns(whole, args.rounds), BASES)
    return found


def ids(length: int) -> list[int]:
    return [(i * 7919) % 20000 + 100 for i in range(length)]


def prompt_seconds(worker: Worker, prompt: list[int]) -> float:
    return float(worker.generate([prompt], 1)["seconds"])


# -- many requests at once ------------------------------------------------------------------------


def at_once(session: Session, args: argparse.Namespace) -> tuple[Times, int]:
    """Return the seconds for all requests, and their tokens; each is as long as its shortest
    answer of any side that does not draft."""
    prompts = [
        p for kind in ("chat", "code") for p in encoded(args.tokenizer, kind)[: args.prompts]
    ]

    def answer(side: Side, lengths: list[int]) -> dict[str, Any]:
        worker = session.worker(side)
        return worker.generate(asked, lengths, ignore_eos=False, **side.more)

    asked = prompts
    most = [LOADED_TOKENS] * len(prompts)
    texts = [answer(side, most)["tokens"] for side in session.sides if side.plain is None]
    lengths = [min(counted(text, args.ends) for text in each) for each in zip(*texts, strict=True)]
    kept = [(p, n) for p, n in zip(prompts, lengths, strict=True) if n >= FEWEST]
    asked, lengths = [prompt for prompt, _ in kept], [length for _, length in kept]

    def seconds(side: Side) -> float:
        return float(answer(side, lengths)["seconds"])

    sides = {side.name: partial(seconds, side) for side in session.sides}
    return beside(in_turns(sides, args.rounds), BASES), sum(lengths)


# -- end to end -----------------------------------------------------------------------------------


def end_to_end(
    session: Session, kind: str, args: argparse.Namespace
) -> tuple[Times, dict[str, list[bool]], int]:
    """Return the seconds of each prompt, whether the text is that of the same weights without
    drafts, and the tokens; of each answer as many as the shortest of any side has."""
    prompts = encoded(args.tokenizer, kind)[: args.prompts]

    def side_of(side: Side) -> Callable[[], dict[str, Any]]:
        turns = cycle([prompts[-1], *prompts[:-1]])  # the first turn warms up

        def answer() -> dict[str, Any]:
            worker, prompt = session.worker(side), next(turns)
            return worker.ask(op="stream", prompt=prompt, max_tokens=args.tokens, **side.more)

        return answer

    answers = in_turns({side.name: side_of(side) for side in session.sides}, len(prompts))
    plain = {side.name: side.plain or side.name for side in session.sides}
    times: dict[str, list[float]] = defaultdict(list)
    same: dict[str, list[bool]] = defaultdict(list)
    total = 0
    for turn in range(len(prompts)):
        texts = {name: each[turn]["tokens"] for name, each in answers.items()}
        length = min(counted(text, args.ends) for text in texts.values())
        if length < FEWEST:
            continue
        total += length
        for name, each in answers.items():
            times[name].append(seconds_to(each[turn]["marks"], length))
            same[name].append(texts[name][:length] == texts[plain[name]][:length])
            same[f"{name} as {BF16}"].append(texts[name][:length] == texts[BF16][:length])
    return beside(times, (BF16, AUTO)), same, total
