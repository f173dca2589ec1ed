"""What is asked of an engine to learn its seconds and its acceptance, within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import NamedTuple

from paceline.core import InvalidRequest
from paceline.engines.answers import EngineAnswer, EngineAsk, Message
from paceline.engines.client import EngineClient, EngineRefused
from paceline.engines.tune.steps import Step, bursts, steps_of

Prompt = Sequence[Message]
Fields = Mapping[str, object]
SHORT = 16  # tokens of an answer that is asked for its steps only
FIRST = 6  # prompts that are answered one by one: they tell acceptance as well
ALONE = 0.12  # share of the time that the answers of one wave may take one by one
WARM = 8  # requests at once that warm the engine up
SEVERAL = 4  # prompts that are answered at least where several run at once
# The answer has to be this text, by vLLM's field. Nobody can foresee it, and tokens that do not fit
# are cut off a draft: so nearly every step verifies the last token alone.
UNFORESEEN = (
    "BmH3fgSjFWfQrdhKJgthTKfVks22WfVWHfsdTlxJmSkVzT5p"
    "jWV2qFjT7gVfZrP5SKBMWMFztp6thVzRPC9LxXgkQJnCmPJd"
)
NOTHING_FITS: Fields = {"structured_outputs": {"regex": UNFORESEEN}}
FITTING = 0.1  # share of rounds with drafts from which on it does not do that
MARGIN = 3  # steps beside the edge of the drafter's context that are not counted
BESIDE = 32  # tokens of a short prompt beside a long one


@dataclass(frozen=True, slots=True)
class Wave:
    """Answers to prompts that were asked with so many requests at once."""

    requests: int
    prompts: tuple[int, ...]  # of each answer, its prompt's number
    answers: list[EngineAnswer]

    @property
    def steps(self) -> list[Step]:
        """The steps in which all the requests were decoded."""
        return steps_of(self.answers, self.requests)


@dataclass(slots=True)
class Prober:
    """Asks an engine, in turns through the prompts, until `limit` seconds are spent.

    Greedy answers are the same for any draft length, up to the engine's rounding.
    """

    client: EngineClient
    prompts: Sequence[Prompt]
    limit: float
    clock: Callable[[], float] = time.perf_counter
    asked: int = 0
    started: float = field(init=False)
    _place: int = 0
    _chats: bool = True
    _pace: float = 1e-6  # seconds per token of a single request

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    @property
    def left(self) -> float:
        """Seconds of the limit that are left."""
        return self.limit - self.spent

    def wave(
        self, requests: int, tokens: int, draft_len: int | None = None, fields: Fields | None = None
    ) -> Wave:
        """Ask the next prompts, `requests` at a time: as many, but a few at least where the answers
        are long. `draft_len` states one with each request, 0 for none."""
        count = max(requests, 2 if tokens == SHORT else self._fewest(requests, tokens))
        prompts = [(self._place + index) % len(self.prompts) for index in range(count)]
        self._place += count
        return self._answered(requests, prompts, tokens, draft_len, fields or {})

    def _fewest(self, requests: int, tokens: int) -> int:
        """Return how many answers a wave has at least: fewer where they would take too long."""
        usual = FIRST if requests == 1 else SEVERAL
        return max(2, min(usual, int(ALONE * self.limit / (tokens * self._pace))))

    def again(self, wave: Wave, tokens: int) -> Wave:
        """Ask the prompts of a wave once more, with the engine's own drafts."""
        return self._answered(wave.requests, wave.prompts, tokens, None, {})

    def _answered(
        self, requests: int, prompts: Sequence[int], tokens: int, draft_len: int | None,
        fields: Fields,
    ) -> Wave:  # fmt: skip
        asks = [
            EngineAsk(
                self._prompt(number),
                tokens,
                speculative=False if draft_len == 0 else None,
                draft_len=draft_len or None,
                fields=fields,
            )
            for number in prompts
        ]
        return Wave(requests, tuple(prompts), self.ask_all(asks, requests))

    def ask_all(self, asks: Sequence[EngineAsk], requests: int) -> list[EngineAnswer]:
        self.asked += len(asks)
        return self.client.ask_all(asks, requests)

    def warm_up(self, requests: int) -> None:
        """Have the engine do once what it does lazily, and learn whether it knows chats."""
        try:
            first = self.wave(1, SHORT)
        except EngineRefused as refused:
            if refused.status != 400 or not self._chats:
                raise
            self._chats = False  # a model without a chat template
            first = self.wave(1, SHORT)
        self._pace = first.answers[-1].tpot or self._pace
        if requests > 1:
            self.wave(min(requests, WARM), SHORT)

    def without_drafts(self, requests: int) -> list[Step] | None:
        """Return steps that verify no draft although the drafter runs; None where the engine
        cannot be asked for them."""
        try:
            wave = self.wave(requests, SHORT, fields=NOTHING_FITS)
        except EngineRefused:
            return None
        arrived = [tokens for answer in wave.answers for _, tokens in bursts(answer)]
        told = [answer.drafts for answer in wave.answers if answer.drafts is not None]
        drafted = sum(told) if told else sum(tokens > 1 for tokens in arrived)
        return None if drafted > FITTING * len(arrived) else wave.steps or None

    def _prompt(self, number: int) -> str | Prompt:
        messages = self.prompts[number]
        return messages if self._chats else "\n".join(each["content"] for each in messages)


@dataclass(frozen=True, slots=True)
class DrafterSteps:
    """Steps of one size with the drafter, and the like without: what it costs is between them."""

    drafted: list[Step]
    undrafted: list[Step]


class ProbeBatch(NamedTuple):
    """Requests that decode together: `long` with texts at the end of the context, `short` ones."""

    long: int
    short: int

    @property
    def requests(self) -> int:
        return self.long + self.short


def drafter_steps(
    prober: Prober,
    text: Sequence[int],
    batch: ProbeBatch,
    draft_len: int,
    longest: int,
    rounds: int,
) -> DrafterSteps | None:
    """Measure what the drafter adds to a step, at the end of the engine's context.

    vLLM runs no drafter for a batch whose longest request has no room for another draft, and
    verifies meaningless tokens in place of the drafts. So copies of a text that ends a few `rounds`
    before that are continued to the end of the context, beside short texts.
    """
    room = (2 * draft_len + 2) + rounds  # tokens from the prompt's end to the context's
    ids = list(islice(cycle(text), longest - room))
    long = EngineAsk(ids, room, ignore_eos=True)
    if batch.short:  # the long prompt lies in the prefix cache then: the short ones start with it
        prober.ask_all([replace(long, max_tokens=1)], 1)
    short = EngineAsk(ids[:BESIDE], 2 * room, ignore_eos=True)
    answers = prober.ask_all([long] * batch.long + [short] * batch.short, batch.requests)
    leader = min(answers[: batch.long], key=lambda answer: answer.arrivals[0])
    begun = max(answer.arrivals[0] for answer in answers)
    ended = min(answer.arrivals[-1] for answer in answers)
    edge = room - (2 * draft_len + 2)  # tokens of the answer after which nothing is drafted
    steps = DrafterSteps([], [])
    place, before, behind = 0, -math.inf, False
    for at, tokens in bursts(leader):
        beyond = edge + MARGIN <= place <= edge + draft_len + 1
        if begun <= before and at <= ended:  # all are decoded
            if place < edge - MARGIN:
                steps.drafted.append(Step(at - before, tokens))
            elif beyond:
                steps.undrafted.append(Step(at - before, tokens))
        if beyond and behind and tokens > 1:
            return None  # only the first step beyond verifies a draft, unless the engine drafts on
        place, before, behind = place + tokens, at, beyond
    return steps if steps.drafted and steps.undrafted else None


def context_text(answers: Sequence[EngineAnswer]) -> list[int]:
    """Return token ids of prompts and answers, one after the other."""
    return [
        token
        for answer in answers
        for token in (*(answer.prompt_token_ids or ()), *answer.token_ids)
    ]


def check_prompts(prompts: Sequence[Prompt]) -> None:
    """Raise InvalidRequest where there are too few prompts for an interval."""
    if len(prompts) < 2:
        raise InvalidRequest("prompts", len(prompts), "a set of at least 2 prompts")
