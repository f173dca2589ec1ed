"""The same measurement without HTTP: an `LLM` in this process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.bench.load.answers import MeasuredAnswer, PartCounts
from paceline.bench.prompts import BenchPrompt
from paceline.core import OutputDelta, SamplingParams, SpeculativeParams, TokenKind
from paceline.core.rounds import Round

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from paceline.llm import LLM


class InProcess:
    """Answers prompts with an `LLM`, one at a time.

    It drives the engine itself, because every request needs a scope of its own: no prefix hit and
    no remembered answer helps it.
    """

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params

    async def __call__(self, prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        return self.ask(prompt, speculative)

    def ask(self, prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        ids = self._llm.encode_chat(prompt.messages)
        wish = SpeculativeParams.parse(speculative)
        return ask_engine(self._llm.engine, ids, self._params, wish, salt=uuid.uuid4().bytes)


def ask_engine(
    engine: Engine,
    prompt_ids: list[int],
    params: SamplingParams,
    wish: SpeculativeParams,
    *,
    salt: bytes,
    cohort: str = "",
) -> MeasuredAnswer:
    """Answers one prompt, alone. `salt` is its scope, `cohort` whom it is counted with."""
    made = MeasuredAnswer(started=time.perf_counter())
    requests = engine.make_requests(
        prompt_ids, params, wish, request_id=f"bench-{uuid.uuid4().hex}", salt=salt, cohort=cohort
    )
    engine.add(requests)
    while engine.has_work:
        for delta in engine.step():
            _take(made, delta, time.perf_counter())
    return made


def _round(position: int, drafted: int, kinds: Sequence[TokenKind]) -> Round:
    """A round commits one token more than it accepts. Where it has no bonus, the text ended inside
    the draft, or the grammar left no choice behind it: the last accepted token stands for the
    bonus, and nothing was there to draft after it.

    What the grammar forced is no merit of a draft: plain decoding gets it without a forward too.
    """
    accepted = max(0, len(kinds) - kinds.count(TokenKind.FORCED) - 1)
    return Round(position, drafted if TokenKind.BONUS in kinds else accepted, accepted)


def _take(answer: MeasuredAnswer, delta: OutputDelta, now: float) -> None:
    answer.token_ids += delta.token_ids
    answer.kinds += delta.kinds
    answer.arrivals += [now] * len(delta.token_ids)
    answer.text += delta.text
    answer.logprobs += [row.logprob for row in delta.logprobs or ()]
    if delta.finish_reason is not None:
        answer.finish_reason = delta.finish_reason.value
    if delta.stats is not None:
        position = delta.completion_tokens - len(delta.token_ids)
        if position:  # the first token comes with the prompt: nobody could draft it
            drafted = delta.stats.draft_tokens - answer.draft_tokens
            answer.rounds.append(_round(position, drafted, delta.kinds))
        answer.draft_rounds = delta.stats.draft_rounds
        answer.accepted = delta.stats.accepted_tokens
        answer.draft_tokens = delta.stats.draft_tokens
        answer.distance = delta.stats.distance
        answer.replaced_tokens = delta.stats.replaced_tokens
        if delta.finished:
            answer.parts = {
                name: PartCounts(part.draft_rounds, part.draft_tokens, part.accepted_tokens)
                for name, part in delta.stats.by_part().items()
            }
