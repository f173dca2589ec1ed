"""The same measurement without HTTP: an `LLM` in this process."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from paceline.bench.prompts import Prompt
from paceline.bench.record import Answer
from paceline.core import OutputDelta, SamplingParams, SpeculativeParams

if TYPE_CHECKING:
    from paceline.llm import LLM


class InProcess:
    """Answers prompts with an `LLM`, one at a time.

    It drives the engine itself, because every request needs a scope of its own: no prefix hit and
    no remembered answer helps it.
    """

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params

    async def __call__(self, prompt: Prompt, speculative: Any) -> Answer:
        return self.ask(prompt, speculative)

    def ask(self, prompt: Prompt, speculative: Any) -> Answer:
        engine, scope = self._llm.engine, uuid.uuid4()
        answer = Answer(started=time.perf_counter())
        requests = engine.make_requests(
            self._llm.encode_chat(prompt.messages),
            self._params,
            SpeculativeParams.parse(speculative),
            request_id=f"bench-{scope.hex}",
            salt=scope.bytes,
        )
        engine.add(requests)
        while engine.has_work:
            for delta in engine.step():
                _take(answer, delta, time.perf_counter())
        return answer


def _take(answer: Answer, delta: OutputDelta, now: float) -> None:
    answer.token_ids += delta.token_ids
    answer.arrivals += [now] * len(delta.token_ids)
    answer.text += delta.text
    answer.logprobs += [row.logprob for row in delta.logprobs or ()]
    if delta.finish_reason is not None:
        answer.finish_reason = delta.finish_reason.value
    if delta.stats is not None:
        answer.draft_rounds = delta.stats.draft_rounds
        answer.accepted = delta.stats.accepted_tokens
        answer.draft_tokens = delta.stats.draft_tokens
        answer.distance = delta.stats.distance
        answer.replaced_tokens = delta.stats.replaced_tokens
