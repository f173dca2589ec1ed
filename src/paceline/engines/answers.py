"""A request and its answer in terms that every engine has."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from paceline.core.rounds import acceptance_length

Json = dict[str, Any]  # an object that goes over HTTP
Message = Mapping[str, str]


class AnsweredRound(NamedTuple):
    """A draft that was verified, or on our own server a round without one. `position` counts the
    answer's tokens before it."""

    position: int
    drafted: int
    accepted: int


class LogprobsById(NamedTuple):
    """The log-probability of a chosen token, and those of the likeliest ones by token id."""

    chosen: float
    top: dict[int, float]


@dataclass(frozen=True, slots=True)
class EngineAsk:
    """One request for one answer. `prompt` is a text, token ids, or a conversation.

    `top_logprobs` asks for so many likeliest tokens at each place; None for none. `speculative`
    False asks for speculation off, and `draft_len` for drafts of so many tokens, which only
    Paceline's server can do for one request. `fields` are OpenAI's, and go into the body as they
    are.
    """

    prompt: str | Sequence[int] | Sequence[Message]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    top_logprobs: int | None = None
    ignore_eos: bool = False
    speculative: bool | None = None
    draft_len: int | None = None
    fields: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_chat(self) -> bool:
        """Return whether the prompt is a conversation."""
        prompt = self.prompt
        return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)


@dataclass(slots=True)
class EngineAnswer:
    """An answer as it came in. Times are seconds on one monotonic clock.

    `arrivals[i]` is when token i reached the reader; tokens of one step share a time. `rounds` is
    None where the engine does not tell what each draft did; `drafts`, `drafted` and `accepted`
    count over the whole answer, and are None where it tells nothing. `cached_tokens` of the prompt
    came from the prefix cache; None where the engine does not say.
    """

    started: float = field(default_factory=time.perf_counter)
    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    logprobs: list[LogprobsById] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rounds: list[AnsweredRound] | None = None
    tool_calls: list[Json] = field(default_factory=list)

    def extend(self, token_ids: Sequence[int], text: str) -> None:
        """Add tokens that arrive now, and their text."""
        now = time.perf_counter()
        self.token_ids += token_ids
        self.arrivals += [now] * len(token_ids)
        self.text += text

    def add_rounds(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Add what each verified draft did. The prompt's own step gives the first token, and each
        round commits one token more than it accepts.

        Engines leave out steps without a draft. Where there were such steps, a round belongs to the
        next event of the stream that has as many tokens; between equal ones that is a guess.
        """
        sizes = [count + 1 for count in accepted]
        starts = list(accumulate(sizes, initial=1))
        bursts = [len(list(group)) for _, group in groupby(self.arrivals)]
        borders = list(accumulate(bursts))[:-1]  # an event may hold several rounds, never parts
        if bursts and not set(borders) <= set(starts):
            starts = _matched(bursts, sizes)
        rounds = zip(starts, drafted, accepted, strict=False)
        self.rounds = [AnsweredRound(*each) for each in rounds]

    @property
    def ttft(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.arrivals[0] - self.started

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for fewer than two."""
        if len(self.arrivals) < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (len(self.arrivals) - 1)

    @property
    def acceptance_length(self) -> float | None:
        """AL of the rounds that drafted, incl. bonus; None where the engine does not tell."""
        if self.accepted is None or self.drafts is None:
            return None
        return acceptance_length(self.accepted, self.drafts)


def _matched(bursts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return where in an answer its rounds started: `bursts` are the tokens of its events, of which
    the first is the prompt's, `sizes` those that the rounds committed."""
    starts, position, place = list[int](), bursts[0], 1
    for size in sizes:
        while place < len(bursts) - 1 and bursts[place] != size:
            position += bursts[place]
            place += 1
        starts.append(position)
        position += bursts[place] if place < len(bursts) else size
        place += 1
    return starts
