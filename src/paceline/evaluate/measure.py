"""Runs the real engine over one set: every prompt with every drafter, in turns, on the same text.

What comes out is one row per prompt, as JSON has it; `numbers` makes the report's numbers of rows.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.inprocess import ask_engine
from paceline.bench.record import Answer
from paceline.core import Grammar, SamplingParams, SpeculativeParams, TokenKind
from paceline.core.rounds import AR
from paceline.dataset.loops import loop_start
from paceline.engine.engine import Engine
from paceline.evaluate.sets import EvalPrompt, EvalSet
from paceline.evaluate.warm import HeldCache

DRAFTER, NGRAM, SUFFIX = "drafter", "ngram", "suffix"
WHO = (DRAFTER, NGRAM, SUFFIX)
THROUGHPUT, FULL = "throughput", "full"  # the engine's default policy; always the whole block
TIMED = (AR, f"{DRAFTER}/{THROUGHPUT}", f"{DRAFTER}/{FULL}", f"{NGRAM}/{THROUGHPUT}",
         f"{SUFFIX}/{THROUGHPUT}")  # fmt: skip
ONCE = (f"{NGRAM}/{FULL}", f"{SUFFIX}/{FULL}")  # for their acceptance only
Progress = Callable[[str], None]


@dataclass(slots=True)
class Side:
    """One way to answer a prompt: all its runs."""

    answers: list[Answer] = field(default_factory=list)


@dataclass(slots=True)
class Bench:
    """One engine with the drafter and those beside it. `names` are the registered names by WHO,
    `memories` what is warmed for each set: suffix's, and with `warm` the drafter's own."""

    engine: Engine
    names: dict[str, str]
    memories: list[HeldCache]
    warm: bool
    tokens: int
    runs: int
    seed: int
    progress: Progress = lambda what: None

    def block(self, who: str) -> int:
        """The longest draft that it makes."""
        return self.engine.drafters[self.names[who]].max_draft_len

    def measure(self, chosen: EvalSet, temperature: float) -> tuple[list[dict[str, Any]], str]:
        """Rows of a set's prompts at one temperature, and how the suffix drafter was warmed."""
        scopes, warmed = self._warm(chosen, temperature)
        sides = [dict[str, Side]() for _ in chosen.prompts]
        for index in _one_of_each(chosen):  # what is lazy is paid for before anything is timed
            for name in (*TIMED, *ONCE):
                self._ask(chosen, index, name, temperature, scopes[index])
        for run in range(self.runs):
            for index in range(len(chosen.prompts)):
                for name in self._order(run, index):
                    answer = self._ask(chosen, index, name, temperature, scopes[index])
                    sides[index].setdefault(name, Side()).answers.append(answer)
                    self.progress(f"{chosen.spec.name}, T = {temperature:g}")
        rows = [
            self._row(prompt, found, self.seed + index)
            for index, (prompt, found) in enumerate(zip(chosen.prompts, sides, strict=True))
        ]
        return rows, warmed

    def answers_of(self, chosen: EvalSet) -> int:
        """How often progress() is called for a set at one temperature."""
        each = len(TIMED) * self.runs + len(ONCE) + (not chosen.answers)
        return each * len(chosen.prompts)

    # -- inside -----------------------------------------------------------------------------------

    def _order(self, run: int, index: int) -> Sequence[str]:
        """Everybody is first, last and in between equally often, and next to AR in turns."""
        names = (*TIMED, *ONCE) if run == 0 else TIMED
        start = (run + index) % len(names)
        turned = (*names[start:], *names[:start])
        return turned if (run + index) % 2 == 0 else turned[::-1]

    def _ask(
        self, chosen: EvalSet, index: int, name: str, temperature: float, scope: bytes
    ) -> Answer:
        """Suffix decoding looks into `scope`, and the drafter if it is warmed. The others get one
        of their own each time: a prompt is answered several times, and a drafter that remembers
        would copy its answer."""
        prompt = chosen.prompts[index]
        looking = (SUFFIX, DRAFTER) if self.warm else (SUFFIX,)
        own = scope if name.startswith(looking) else uuid.uuid4().bytes
        params = SamplingParams(
            temperature=temperature,
            max_tokens=self.tokens,
            seed=self.seed + index,
            grammar=prompt.grammar,
        )
        bound = "free" if prompt.grammar is None else "bound"
        return ask_engine(
            self.engine,
            list(prompt.ids),
            params,
            self._wish(name),
            salt=own,
            # A policy learns from its own.
            cohort=f"{chosen.spec.name} {temperature:g} {name} {bound}",
        )

    def _wish(self, name: str) -> SpeculativeParams:
        if name == AR:
            return SpeculativeParams(off=True)
        who, _, policy = name.partition("/")
        kind = "fixed" if policy == FULL else policy
        return SpeculativeParams(drafter=self.names[who], policy=kind)

    def _warm(self, chosen: EvalSet, temperature: float) -> tuple[list[bytes], str]:
        """The scope that each prompt is asked in, with answers remembered that may help it."""
        count = len(chosen.prompts)
        for memory in self.memories:
            memory.forget()
        if chosen.answers:
            scope = uuid.uuid4().bytes
            self._remember(scope, chosen.answers)
            return [scope] * count, f"{len(self.memories[0])} answers of the set's train split"
        halves = [uuid.uuid4().bytes, uuid.uuid4().bytes]
        for index, prompt in enumerate(chosen.prompts):
            said = self._ask(chosen, index, f"{DRAFTER}/{FULL}", temperature, halves[0])
            self._remember(halves[1 - index % 2], [(prompt.ids, said.token_ids)])
            self.progress(f"{chosen.spec.name}, T = {temperature:g}: answers to warm with")
        if count < 2:
            return halves[:1] * count, "nothing: the set has no train split and no other prompt"
        how = "the answers to every other prompt of the set (each half with those of the other)"
        return [halves[index % 2] for index in range(count)], how

    def _remember(
        self, scope: bytes, answers: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> None:
        for memory in self.memories:
            memory.warm(scope, answers)

    def _row(self, prompt: EvalPrompt, sides: dict[str, Side], seed: int) -> dict[str, Any]:
        text = sides[AR].answers[0]
        start = loop_start(text.token_ids)
        counted = len(text.token_ids) if start is None else start
        return {
            "prompt": prompt.name,
            "prompt_sha256": digest(prompt.ids),
            "prompt_tokens": len(prompt.ids),
            "seed": seed,
            "output_tokens": len(text.token_ids),
            "output_sha256": digest(text.token_ids),
            "counted_tokens": counted,
            "forced_tokens": text.kinds[:counted].count(TokenKind.FORCED),
            "grammar_sha256": prompt.grammar and grammar_digest(prompt.grammar),
            "finish_reason": text.finish_reason,
            "same_text": {name: _same(side, text) for name, side in sides.items() if name != AR},
            "seconds": {name: [_seconds(a, counted) for a in side.answers]
                        for name, side in sides.items() if name not in ONCE},
            "rounds": {name: [[r.position, r.drafted, r.accepted] for r in side.answers[0].rounds]
                       for name, side in sides.items() if name != AR},
        }  # fmt: skip


def digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


def grammar_digest(grammar: Grammar) -> str:
    return hashlib.sha256(f"{grammar.kind}\n{grammar.source}".encode()).hexdigest()[:16]


def _one_of_each(chosen: EvalSet) -> list[int]:
    """The first prompt, and the first that is bound otherwise."""
    grammars = [prompt.grammar for prompt in chosen.prompts]
    return [grammars.index(grammar) for grammar in dict.fromkeys(grammars)]


def _same(side: Side, text: Answer) -> bool:
    return all(
        answer.token_ids == text.token_ids and answer.finish_reason == text.finish_reason
        for answer in side.answers
    )


def _seconds(answer: Answer, count: int) -> float | None:
    """From the first token to the last of the counted ones; None where there are not two."""
    last = min(count, len(answer.arrivals))
    return answer.arrivals[last - 1] - answer.arrivals[0] if last > 1 else None
