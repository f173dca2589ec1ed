"""Measured answers of an engine in this process, without HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.bench.engine_access import fresh_requests, run
from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.prompts import BenchPrompt
from paceline.core import (
    OutputDelta,
    SamplingParams,
    SpeculationStats,
    SpeculativeParams,
    TokenKind,
)
from paceline.core.rounds import Round

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from paceline.llm import LLM


class InProcess:
    """Answers prompts with an `LLM`, one at a time, each in a scope of its own."""

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params

    async def __call__(self, prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        return self.ask(prompt, speculative)

    def ask(self, prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        """Answer one prompt; `speculative` as in the API."""
        ids = self._llm.encode_chat(prompt.messages)
        speculation = SpeculativeParams.parse(speculative)
        return ask_engine(self._llm.engine, ids, self._params, speculation)


def ask_engine(
    engine: Engine,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    speculation: SpeculativeParams,
    *,
    salt: bytes | None = None,
    cohort: str = "",
) -> MeasuredAnswer:
    """Answer one prompt, alone. `salt` is its scope, by default one of its own; `cohort` is what
    its acceptance is counted with."""
    answer = MeasuredAnswer(started=time.perf_counter())
    requests = fresh_requests(engine, prompt_ids, params, speculation, salt=salt, cohort=cohort)
    for delta in run(engine, requests):
        _take(answer, delta, time.perf_counter())
    return answer


def _take(answer: MeasuredAnswer, delta: OutputDelta, now: float) -> None:
    answer.token_ids += delta.token_ids
    answer.kinds += delta.kinds
    answer.arrivals += [now] * len(delta.token_ids)
    answer.text += delta.text
    answer.logprobs += [row.logprob for row in delta.logprobs or ()]
    if delta.finish_reason is not None:
        answer.finish_reason = delta.finish_reason.value
    if delta.stats is not None:
        drafted = _counts(delta.stats)
        position = delta.completion_tokens - len(delta.token_ids)
        if position:  # the first token comes with the prompt: no drafter could draft it
            verified = drafted.tokens - answer.drafted.tokens
            answer.rounds.append(_round(position, verified, delta.kinds))
        answer.drafted = drafted
        answer.distance = delta.stats.distance
        answer.replaced_tokens = delta.stats.replaced_tokens
        if delta.finished:
            answer.parts = {name: _counts(part) for name, part in delta.stats.by_part().items()}


def _counts(stats: SpeculationStats) -> DraftCounts:
    return DraftCounts(stats.draft_rounds, stats.draft_tokens, stats.accepted_tokens)


def _round(position: int, drafted: int, kinds: Sequence[TokenKind]) -> Round:
    """Return the round that committed tokens of these kinds.

    A round commits one token more than it accepts. Where it has no bonus, the text ended inside
    the draft, or the grammar left no choice behind it: the last accepted token stands for the
    bonus, and nothing was there to draft after it. Forced tokens are in neither count, because
    plain decoding gets them without a forward too.
    """
    accepted = max(0, len(kinds) - kinds.count(TokenKind.FORCED) - 1)
    return Round(position, drafted if TokenKind.BONUS in kinds else accepted, accepted)
