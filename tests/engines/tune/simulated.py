"""An engine with a known law of cost and known acceptance, on a clock of its own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engines.answers import AnsweredRound, EngineAnswer, EngineAsk
from paceline.engines.kind import Capabilities, EngineDescription

PROMPT_TOKENS = 50


@dataclass(frozen=True)
class Law:
    """Seconds of a target's step: `floor`, and `per_row` for rows past `knee`; and of a drafter's,
    in proportion to the rows of its blocks, and to the text before them."""

    floor: float = 0.024
    per_request: float = 0.0003
    per_row: float = 0.0007
    knee: int = 8
    drafter: float = 0.005
    drafter_row: float = 0.0003
    drafter_context: float = 0.0

    def step(self, requests: int, rows: int) -> float:
        beyond = max(0, rows - self.knee)
        return self.floor + self.per_request * requests + self.per_row * beyond

    def draft(self, requests: int, draft_len: int, text: int = 0) -> float:
        rows = self.drafter_row * requests * (draft_len + 1)
        return self.drafter + rows + self.drafter_context * text


@dataclass
class Running:
    answer: EngineAnswer
    ask: EngineAsk
    draft_len: int  # that the engine drafts for it
    rate: float  # how readily its text accepts
    prompt: int
    text: int  # a number that equal prompts share
    rounds: list[AnsweredRound] = field(default_factory=list)


class SimulatedEngine:
    """Answers as EngineClient does. `cuts` says whether a grammar shortens drafts, as on vLLM's
    synchronous scheduler; `by_request` whether a request may state a draft length."""

    url = "http://simulated"

    def __init__(
        self,
        law: Law,
        survival: Sequence[float],
        *,
        draft_len: int | None = None,
        noise: float = 0.03,
        seed: int = 0,
        cuts: bool = True,
        by_request: bool = False,
        tells_rounds: bool = True,
        max_model_len: int | None = 2048,
    ) -> None:
        self.law, self.now, self.draft_len = law, 0.0, draft_len or len(survival)
        self._conditional = [b / a for a, b in zip([1.0, *survival], survival, strict=False)]
        self._rng, self._noise, self._cuts = np.random.default_rng(seed), noise, cuts
        self._tells, self._seed = tells_rounds, seed
        self.description = EngineDescription(
            kind="simulated", version="1", model="m", max_model_len=max_model_len,
            capabilities=Capabilities(True, tells_rounds, tells_rounds, by_request, True),
            draft_len=self.draft_len,
        )  # fmt: skip

    def clock(self) -> float:
        return self.now

    def true_seconds(self, requests: int, draft_len: int) -> float:
        """Seconds of a round; of a step without speculation for 0."""
        step = self.law.step(requests, requests * (draft_len + 1))
        return step + (self.law.draft(requests, draft_len) if draft_len else 0.0)

    def true_speed(self, requests: int, draft_len: int) -> float:
        """Tokens per second of one request."""
        survival = np.cumprod(self._conditional[:draft_len])
        return float(1 + survival.sum()) / self.true_seconds(requests, draft_len)

    def ask_all(self, asks: Sequence[EngineAsk], at_once: int = 1) -> list[EngineAnswer]:
        waiting, running = [self._begin(ask) for ask in asks], list[Running]()
        begun, done = list(waiting), 0
        while done < len(asks):
            fresh = waiting[: at_once - len(running)]
            del waiting[: len(fresh)]
            for each in fresh:
                each.answer.started = self.now
            if fresh:
                self._spend(self.law.step(len(fresh), sum(each.prompt for each in fresh)))
                self._spend(self.law.draft(len(fresh), self.draft_len))
                for each in fresh:
                    each.answer.extend([7], "")
                    each.answer.arrivals[-1] = self.now
            running += fresh
            running = [each for each in running if not self._is_done(each)]
            if running:
                self._round(running)
            finished = [each for each in running if self._is_done(each)]
            running = [each for each in running if each not in finished]
            done = len(asks) - len(waiting) - len(running)
        return [self._end(each) for each in begun]

    def _begin(self, ask: EngineAsk) -> Running:
        prompt = PROMPT_TOKENS if ask.is_chat else len(ask.prompt)
        draft_len = 0 if ask.speculative is False else ask.draft_len or self.draft_len
        stated = ask.speculative is False or ask.draft_len is not None
        assert not stated or self.description.capabilities.speculation_off
        if self._cuts and "structured_outputs" in ask.fields:
            draft_len = -1  # the drafter runs in vain
        text = zlib.crc32(repr((self._seed, ask.prompt)).encode())
        rate = float(np.random.default_rng(text).normal(1, 0.1))
        return Running(EngineAnswer(), ask, draft_len, rate, prompt, text)

    def _round(self, running: list[Running]) -> None:
        """Draft and verify once, as vLLM does at the end of its context as well."""
        longest = self.description.max_model_len or 10**9
        text = {id(each): each.prompt + len(each.answer.token_ids) - 1 for each in running}
        drafts = {
            id(each): max(0, min(each.draft_len, longest - text[id(each)] - 2)) for each in running
        }
        rows = sum(drafts.values()) + len(running)
        seconds = self.law.step(len(running), rows)
        ends = max(text[id(e)] + drafts[id(e)] + 1 for e in running) + self.draft_len + 1
        drafting = max(self.draft_len if e.draft_len < 0 else e.draft_len for e in running)
        runs_drafter = drafting > 0 and ends <= longest
        if runs_drafter:
            seconds += self.law.draft(len(running), drafting, sum(text.values()))
        self._spend(seconds)
        near = any(each + 2 * self.draft_len + 2 > longest for each in text.values())
        for each in running:
            drafted = drafts[id(each)]
            accepted = 0 if near else self._accepted(each, drafted)
            place, left = len(each.answer.token_ids), each.ask.max_tokens
            each.answer.extend([7] * min(accepted + 1, left - place), "")
            for index in range(place, len(each.answer.arrivals)):
                each.answer.arrivals[index] = self.now
            if drafted:
                each.rounds.append(AnsweredRound(place, drafted, accepted))

    def _accepted(self, each: Running, drafted: int) -> int:
        """Equal prompts have equal texts, which accept alike."""
        text = np.random.default_rng([each.text, len(each.answer.token_ids)])
        for place in range(drafted):
            if text.random() > min(1.0, self._conditional[place] * each.rate):
                return place
        return drafted

    def _spend(self, seconds: float) -> None:
        self.now += seconds * float(np.exp(self._rng.normal(0, self._noise)))

    def _is_done(self, each: Running) -> bool:
        return len(each.answer.token_ids) >= each.ask.max_tokens

    def _end(self, each: Running) -> EngineAnswer:
        answer = each.answer
        answer.prompt_tokens, answer.prompt_token_ids = each.prompt, [3] * each.prompt
        if self._tells:
            answer.rounds, answer.drafts = each.rounds, len(each.rounds)
            answer.drafted = sum(each.drafted for each in answer.rounds)
            answer.accepted = sum(each.accepted for each in answer.rounds)
        return answer
