"""What the engine asks of whatever chooses its draft lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.core import Request
from paceline.engine.scheduler import Scheduled


class LengthController(Protocol):
    """Chooses draft lengths, before drafting and, where confidence tells more, after it.

    `rows` and `decoding` describe the step without any of the drafts in question: its rows, and
    the requests that get a token each, those of the batch and others. A controller that leaves less
    than there was room for says why in `Scheduled.cut_by`.

    `anticipating` says that verify_lengths looks at drawn tokens' confidence. The engine does not
    ask it about drafts that were sampled and are judged by their q: that cut would be biased.
    """

    anticipating: bool

    def sees(self, request: Request) -> bool:
        """Whether the drafter is to see this step's rows of `request`, now or before it drafts. Not
        asked of requests without a drafter."""
        ...

    def looks_up(self, request: Request) -> bool:
        """Whether drafts that take no time are welcome whatever draft_lengths() says, which then is
        asked about the others alone. They are marked in `Scheduled.looked_up`, whenever made."""
        ...

    def draft_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        """Bounds on the drafts of requests of one drafter; where zero, it is not even asked."""
        ...

    def verify_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        """How much of each draft to verify."""
        ...

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        """A round ended with these tokens."""
        ...

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        ...


def with_forced(entry: Scheduled, rates: Sequence[float]) -> list[float]:
    """Acceptance of every token of a draft, from that of those the drafter chose: what a grammar
    forces stands whenever the tokens before it do."""
    chosen = iter(rates)
    return [1.0 if i in entry.forced else next(chosen) for i in range(len(entry.draft))]


class WholeDrafts:
    """What controllers share that choose before drafting, or not at all."""

    anticipating = False

    def sees(self, request: Request) -> bool:
        return True

    def looks_up(self, request: Request) -> bool:
        return False  # every draft is bounded beforehand

    def draft_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        return [entry.draft_room for entry in batch]

    def verify_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        return [len(entry.draft) for entry in batch]

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None: ...
    def forget(self, request_id: str) -> None: ...


class FixedLengths(WholeDrafts):
    """Every draft as long as asked for and as there is room."""
