"""Run the real engine over one set: every prompt with every drafter, in turns, on the same text.

The result is one row per prompt, as the JSON has it; `numbers` computes a report's numbers of rows.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.bench.load.answers import MeasuredAnswer, ask_engine
from paceline.core import Grammar, SamplingParams, SpeculativeParams, TokenKind
from paceline.core.rounds import AR
from paceline.dataset.loops import loop_start
from paceline.drafters.base import Memory
from paceline.engine.engine import Engine
from paceline.evaluate.result import (
    DRAFTER,
    FULL,
    ONCE,
    TIMED,
    WARMED,
    EvaluationSettings,
    RequestRow,
)
from paceline.evaluate.sets import EvalPrompt, EvalSet

Progress = Callable[[str], None]
Answers = dict[str, list[MeasuredAnswer]]  # of one prompt: all runs, by the name of the side


@dataclass(slots=True)
class Bench:
    """One engine with the drafter and those beside it. `names` holds the registered names by those
    of DRAFTERS, `memories` what is warmed for each set: with `warm` the drafter's too."""

    engine: Engine
    names: dict[str, str]
    memories: list[Memory]
    settings: EvaluationSettings
    progress: Progress = lambda what: None

    def block(self, drafter: str) -> int:
        """Return the longest draft that one of DRAFTERS makes."""
        return self.engine.drafters[self.names[drafter]].max_draft_len

    def measure(self, chosen: EvalSet, temperature: float) -> tuple[list[RequestRow], str]:
        """Return the rows of a set's prompts at one temperature, and how drafters were warmed."""
        scopes, warmed = self._warm(chosen, temperature)
        sides: list[Answers] = [{} for _ in chosen.prompts]
        grammars = [prompt.grammar for prompt in chosen.prompts]
        for grammar in dict.fromkeys(grammars):  # what is lazy is paid for before anything is timed
            index = grammars.index(grammar)
            for name in (*TIMED, *ONCE):
                self._ask(chosen, index, name, temperature, scopes[index])
        for run in range(self.settings.runs):
            for index in range(len(chosen.prompts)):
                for name in self._order(run, index):
                    answer = self._ask(chosen, index, name, temperature, scopes[index])
                    sides[index].setdefault(name, []).append(answer)
                    self.progress(f"{chosen.spec.name}, T = {temperature:g}")
        rows = [
            _row(prompt, answers, self.settings.seed + index)
            for index, (prompt, answers) in enumerate(zip(chosen.prompts, sides, strict=True))
        ]
        return rows, warmed

    def answers_of(self, chosen: EvalSet) -> int:
        """Return how often progress() is called for a set at one temperature."""
        of_prompt = len(TIMED) * self.settings.runs + len(ONCE) + (not chosen.answers)
        return of_prompt * len(chosen.prompts)

    def _order(self, run: int, index: int) -> Sequence[str]:
        return turned((*TIMED, *ONCE) if run == 0 else TIMED, run + index)

    def _ask(
        self, chosen: EvalSet, index: int, name: str, temperature: float, scope: bytes
    ) -> MeasuredAnswer:
        """Answer one prompt by one side.

        Drafters that are warmed look into `scope`. The others get a new scope each time: a prompt
        is answered several times, and a drafter that remembers would copy its answer.
        """
        prompt = chosen.prompts[index]
        looking = (*WARMED, DRAFTER) if self.settings.warm else WARMED
        params = SamplingParams(
            temperature=temperature,
            max_tokens=self.settings.tokens,
            seed=self.settings.seed + index,
            grammar=prompt.grammar,
        )
        bound = "free" if prompt.grammar is None else "bound"
        return ask_engine(
            self.engine,
            list(prompt.ids),
            params,
            self._speculation(name),
            salt=scope if name.startswith(looking) else uuid.uuid4().bytes,
            # A policy learns from its own.
            cohort=f"{chosen.spec.name} {temperature:g} {name} {bound}",
        )

    def _speculation(self, name: str) -> SpeculativeParams:
        if name == AR:
            return SpeculativeParams(off=True)
        drafter, _, policy = name.partition("/")
        kind = "fixed" if policy == FULL else policy
        return SpeculativeParams(drafter=self.names[drafter], policy=kind)

    def _warm(self, chosen: EvalSet, temperature: float) -> tuple[list[bytes], str]:
        """Return the scope that each prompt is asked in, in which answers are remembered that may
        help it, and a description of these answers."""
        count = len(chosen.prompts)
        for memory in self.memories:
            memory.close()
        if chosen.answers:
            scope = uuid.uuid4().bytes
            for before, answer in chosen.answers:
                self._remember(scope, before, answer)
            return [scope] * count, f"{len(self.memories[0])} answers of the set's train split"
        halves = [uuid.uuid4().bytes, uuid.uuid4().bytes]
        for index, prompt in enumerate(chosen.prompts):
            given = self._ask(chosen, index, f"{DRAFTER}/{FULL}", temperature, halves[0])
            self._remember(halves[1 - index % 2], prompt.ids, given.token_ids)
            self.progress(f"{chosen.spec.name}, T = {temperature:g}: answers to warm with")
        if count < 2:
            return halves[:1] * count, "nothing: the set has no train split and no other prompt"
        how = "the answers to every other prompt of the set (each half with those of the other)"
        return [halves[index % 2] for index in range(count)], how

    def _remember(self, scope: bytes, before: Sequence[int], answer: Sequence[int]) -> None:
        for memory in self.memories:
            memory.warm(scope, before, answer)


def turned(sides: Sequence[str], turn: int) -> Sequence[str]:
    """Return the sides in an order in which each is first, last and beside AR equally often."""
    turns, start = divmod(turn, len(sides))
    order = (*sides[start:], *sides[:start])
    return order if turns % 2 == 0 else order[::-1]


def _row(prompt: EvalPrompt, sides: Answers, seed: int) -> RequestRow:
    text = sides[AR][0]
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
        "grammar_sha256": None if prompt.grammar is None else grammar_digest(prompt.grammar),
        "finish_reason": text.finish_reason,
        "same_text": {name: _same(answers, text) for name, answers in sides.items() if name != AR},
        "seconds": {
            name: [_seconds(answer, counted) for answer in answers]
            for name, answers in sides.items()
            if name not in ONCE
        },
        "rounds": {
            name: [[r.position, r.drafted, r.accepted] for r in answers[0].rounds]
            for name, answers in sides.items()
            if name != AR
        },
    }


def digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


def grammar_digest(grammar: Grammar) -> str:
    return hashlib.sha256(f"{grammar.kind}\n{grammar.source}".encode()).hexdigest()[:16]


def _same(answers: Sequence[MeasuredAnswer], text: MeasuredAnswer) -> bool:
    said = (text.token_ids, text.finish_reason)
    return all((answer.token_ids, answer.finish_reason) == said for answer in answers)


def _seconds(answer: MeasuredAnswer, count: int) -> float | None:
    """Return the seconds from the first to the last counted token; None where there are not two."""
    last = min(count, len(answer.arrivals))
    return answer.arrivals[last - 1] - answer.arrivals[0] if last > 1 else None
