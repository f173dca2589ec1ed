"""What is asked, what comes back, and who answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core import SamplingParams


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `prompt_ids` are what serving sends; `messages` say the same for a server that
    renders them itself. `bound` asks for the application's grammar or tools."""

    index: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    messages: tuple[Mapping[str, str], ...]
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """`ids` are what the target said, its end of turn included. `fault` names why an answer cannot
    be used at all: then it is counted under that name."""

    index: int
    ids: tuple[int, ...] = ()
    finish_reason: str = ""
    fault: str | None = None


class Answerer(Protocol):
    """Answers asks in any order, as many at once as pay.

    what      how it answers, as the manifest keeps it: another one would write another text
    room      how many asks it still takes at once
    in_flight how many are not answered yet
    """

    what: str

    @property
    def room(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    def submit(self, ask: Ask) -> None: ...
    def wait(self) -> Sequence[Answer]:
        """Blocks until at least one ask is answered."""
        ...

    def speed(self) -> Speed: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Speed:
    """What was generated since the start: `tokens` in `seconds`, by `batch` requests at once in
    the mean. `prompt_tokens` were read for it, those of the prefix cache not counted."""

    tokens: int
    prompt_tokens: int
    seconds: float
    batch: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "generated_tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
            "mean_batch": round(self.batch, 1),
        }
