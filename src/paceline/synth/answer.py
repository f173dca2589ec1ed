"""Requests to the target, its answers, and the interface of what answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core import SamplingParams


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `prompt_ids` are what serving sends; `messages` are the same for a server that
    renders them itself. `bound` asks for the application's grammar or tools."""

    index: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    messages: tuple[Mapping[str, str], ...]
    bound: bool = False


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """The answer to an Ask. `ids` are the tokens that the target said, its end of turn included.
    `fault` is the reason why an answer cannot be used, under which it is counted."""

    index: int
    ids: tuple[int, ...] = ()
    finish_reason: str = ""
    fault: str | None = None


class Answerer(Protocol):
    """Answers requests in any order, several at once.

    what      its name in the manifest: another answerer would write another text
    capacity  requests that it still takes
    in_flight requests that are not answered yet
    """

    what: str

    @property
    def capacity(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    def submit(self, ask: Ask) -> None: ...
    def wait(self) -> Sequence[TargetAnswer]:
        """Block until at least one request is answered."""
        ...

    def speed(self) -> Speed: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed since the start: `tokens` generated in `seconds`, by `batch` requests at once in
    the mean, after reading `prompt_tokens` that were not in the prefix cache."""

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
