"""An engine in this process that answers by a plan, in place of one behind HTTP."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.client import EngineError
from paceline.engines.kind import Capabilities, EngineDescription
from paceline.engines.vllm import Vllm

DRAFT_LEN = 4


def answered(sizes: Sequence[int], first: int = 10) -> EngineAnswer:
    """An answer that came in events of so many tokens, none twice."""
    answer, now = EngineAnswer(started=0.0), 0.0
    for size in sizes:
        now += 0.01
        start = first + len(answer.token_ids)
        answer.token_ids += range(start, start + size)
        answer.arrivals += [now] * size
    answer.finish_reason = "length"
    answer.prompt_token_ids = [1, 2, 3]
    return answer


@dataclass
class FakeClient:
    """Answers as vLLM does: with the draft of each round where it `speculates`, and another text
    than without for each prompt of `unequal`. It is gone after `lives` answers."""

    speculates: bool = True
    lives: int = 10**9
    unequal: Sequence[int] = ()
    url: str = "http://127.0.0.1:1"
    asked: list[EngineAsk] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        told = Capabilities(token_ids=True, rounds=True, acceptance=True, speculation_off=False,
                            logprobs=True)  # fmt: skip
        self.description = EngineDescription("vllm", "0.32.0", "served", 512, told)
        self.kind, self.model = Vllm(), "served"

    def ask(self, ask: EngineAsk) -> EngineAnswer:
        if len(self.asked) >= self.lives:
            raise EngineError(f"the engine at {self.url} broke off: peer closed connection")
        self.asked.append(ask)
        rng = random.Random(ask.seed)
        accepted = []
        while 1 + sum(accepted) + len(accepted) < ask.max_tokens:
            accepted.append(rng.randint(0, DRAFT_LEN))
        sizes = [1, *(count + 1 for count in accepted)]
        if not self.speculates:
            sizes = [1] * ask.max_tokens
        answer = answered(sizes)
        differs = self.speculates and ask.seed in self.unequal
        del answer.token_ids[ask.max_tokens :], answer.arrivals[ask.max_tokens :]
        if differs:
            answer.token_ids[-1] += 1000
        if self.speculates:
            answer.add_rounds([DRAFT_LEN] * len(accepted), accepted)
            answer.drafts, answer.accepted = len(accepted), sum(accepted)
            answer.drafted = DRAFT_LEN * len(accepted)
        return answer

    def close(self) -> None:
        self.closed = True


def as_client(fake: FakeClient) -> Any:
    """The fake where a client is wanted."""
    return fake
