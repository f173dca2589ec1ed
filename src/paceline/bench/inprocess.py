"""The same measurement without HTTP: an `LLM` in this process."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from paceline.bench.prompts import Prompt
from paceline.bench.record import Answer, Drafted
from paceline.core import OutputDelta, SamplingParams, SpeculationStats, SpeculativeParams
from paceline.core.rounds import Round
from paceline.engine.driver import Driver

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

    async def __call__(self, prompt: Prompt, speculative: Any) -> Answer:
        return self.ask(prompt, speculative)

    def ask(self, prompt: Prompt, speculative: Any) -> Answer:
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
) -> Answer:
    """Answers one prompt, alone. `salt` is its scope, `cohort` whom it is counted with."""
    answer, stats = Answer(started=time.perf_counter()), SpeculationStats()
    requests = engine.make_requests(
        prompt_ids, params, wish, request_id=f"bench-{uuid.uuid4().hex}", salt=salt, cohort=cohort
    )
    for delta in Driver(engine).run(requests):
        _take(answer, delta, time.perf_counter())
        if delta.round is not None:
            stats.add(delta.round)
    answer.draft_rounds, answer.draft_tokens = stats.draft_rounds, stats.draft_tokens
    answer.accepted = stats.accepted_tokens
    answer.distance, answer.replaced_tokens = stats.distance, stats.replaced_tokens
    answer.parts = {
        name: Drafted(part.draft_rounds, part.draft_tokens, part.accepted_tokens)
        for name, part in stats.parts.items()
    }
    return answer


def _take(answer: Answer, delta: OutputDelta, now: float) -> None:
    answer.token_ids += delta.token_ids
    answer.kinds += delta.kinds
    answer.arrivals += [now] * len(delta.token_ids)
    answer.text += delta.text
    answer.logprobs += [row.logprob for row in delta.logprobs or ()]
    if delta.finish_reason is not None:
        answer.finish_reason = delta.finish_reason.value
    if delta.round is not None and delta.round.position:  # the first token comes with the prompt
        judged = delta.round.judged()
        answer.rounds.append(Round(judged.position, judged.drafted, judged.accepted))
