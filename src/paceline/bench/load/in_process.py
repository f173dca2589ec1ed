"""Requests and measured answers of an engine in this process, without HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.prompts import BenchPrompt
from paceline.core import (
    OutputDelta,
    Request,
    Round,
    SamplingParams,
    SpeculationStats,
    SpeculativeParams,
)
from paceline.engine.driver import Driver

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from paceline.llm import LLM


class InProcess:
    """Answers prompts with an `LLM`, one at a time, each in a scope of its own."""

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params

    async def __call__(self, prompt: BenchPrompt, speculative: object) -> MeasuredAnswer:
        return self.ask(prompt, speculative)

    def ask(self, prompt: BenchPrompt, speculative: object) -> MeasuredAnswer:
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
    answer, stats = MeasuredAnswer(started=time.perf_counter()), SpeculationStats()
    requests = fresh_requests(engine, prompt_ids, params, speculation, salt=salt, cohort=cohort)
    for delta in Driver(engine).run(requests):
        _take(answer, delta)
        if delta.round is not None:
            stats.add(delta.round)
    answer.drafted = DraftCounts.of(stats)
    answer.parts = {name: DraftCounts.of(part) for name, part in stats.parts.items()}
    answer.distance, answer.replaced_tokens = stats.distance, stats.replaced_tokens
    return answer


def _take(answer: MeasuredAnswer, delta: OutputDelta) -> None:
    answer.extend(delta.token_ids, delta.text)
    answer.kinds += delta.kinds
    answer.logprobs += [row.logprob for row in delta.logprobs or ()]
    if delta.finish_reason is not None:
        answer.finish_reason = delta.finish_reason.value
    if delta.round is not None and delta.round.position:  # the first token comes with the prompt
        judged = delta.round.judged()
        answer.rounds.append(Round(judged.position, judged.drafted, judged.accepted))


def fresh_requests(
    engine: Engine,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    speculation: SpeculativeParams,
    *,
    salt: bytes | None = None,
    cohort: str = "",
) -> list[Request]:
    """Return the requests of a prompt under an id that nothing else has.

    Without `salt` they have a scope to themselves: no prefix hit and no remembered answer helps
    them. `cohort` is what their acceptance is counted with.
    """
    name = uuid.uuid4()
    return engine.make_requests(
        list(prompt_ids),
        params,
        speculation,
        request_id=f"bench-{name.hex}",
        salt=name.bytes if salt is None else salt,
        cohort=cohort,
    )
