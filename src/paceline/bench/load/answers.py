"""Measured answers: tokens, when each arrived, what speculation did; and how to ask an engine."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from paceline.bench.prompts import BenchPrompt
from paceline.core import (
    OutputDelta,
    Request,
    Round,
    SamplingParams,
    SpeculationStats,
    SpeculativeParams,
    TokenKind,
)
from paceline.core.rounds import acceptance_length
from paceline.engine.driver import Driver

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from paceline.llm import LLM


class DraftCounts(NamedTuple):
    """Rounds that had a draft, and tokens verified and accepted in them."""

    rounds: int = 0
    tokens: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, stats: SpeculationStats) -> DraftCounts:
        return cls(stats.draft_rounds, stats.draft_tokens, stats.accepted_tokens)

    @classmethod
    def total(cls, counts: Iterable[DraftCounts]) -> DraftCounts:
        return cls(*map(sum, zip((0, 0, 0), *counts, strict=True)))

    @property
    def acceptance_length(self) -> float | None:
        """AL of these rounds, the bonus token included; None where nothing was drafted."""
        return acceptance_length(self.accepted, self.rounds)


@dataclass(slots=True)
class MeasuredAnswer:
    """One streamed answer. Times are seconds on one monotonic clock.

    `arrivals[i]` is when token i reached the reader; tokens of one step share a time. `drafted`
    counts the rounds that had a draft, and `parts` those of each part of a drafter with several.
    `rounds` and `kinds`, how each token came to be, are there for an engine in this process.
    `logprobs` are there where they were asked for; `distance` (total variation) and
    `replaced_tokens` belong to lossy budgets.
    """

    started: float
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    drafted: DraftCounts = field(default_factory=DraftCounts)
    parts: dict[str, DraftCounts] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    distance: float = 0.0
    replaced_tokens: int = 0

    def extend(self, token_ids: Sequence[int], text: str) -> None:
        """Add tokens that arrive now, and their text."""
        now = time.perf_counter()
        self.token_ids += token_ids
        self.arrivals += [now] * len(token_ids)
        self.text += text

    @property
    def ttft(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.arrivals[0] - self.started

    @property
    def total(self) -> float:
        return self.arrivals[-1] - self.started

    def tpot(self, count: int | None = None) -> float:
        """Return seconds per token after the first, over `count` tokens; NaN for fewer than two."""
        arrivals = self.arrivals[:count]
        if len(arrivals) < 2:
            return math.nan
        return (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1)

    @property
    def acceptance_length(self) -> float | None:
        return self.drafted.acceptance_length


# -- an engine in this process, without HTTP ------------------------------------------------------


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
