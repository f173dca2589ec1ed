"""The history of drafts: of a request, which may pause, and of requests that behave alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.lengths.acceptance import PositionAcceptance

FIRST, LONGEST = 16, 128  # rounds of a pause
TRIAL = 2  # rounds after a pause that draft whatever is thought of them
ENOUGH = 4  # requests in a row whose drafts did not pay, until not every new request may try
FEWEST, MOST = 2, 32  # requests of a cohort that fails, for each one that may try


@dataclass(slots=True)
class Pause:
    """A request's pause from drafting, twice as long each time its drafts do not pay: `left` rounds
    to go, then `trial` rounds that draft and show whether drafting pays again."""

    left: int = 0
    trial: int = 0
    length: int = FIRST

    def begin(self, clock: int = 0) -> None:
        """Pause for about `length` rounds from `clock` on, up to a multiple of it: requests that
        pause side by side try again in the same step, and share its cost."""
        end = (clock + self.length // 2) // self.length * self.length + self.length
        self.left, self.length = end - clock, min(2 * self.length, LONGEST)

    def tick(self) -> None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.trial = TRIAL
        elif self.trial:
            self.trial -= 1


class CohortRecord:
    """Acceptance by position alone and by confidence as well; whether new requests may draft.

    A new request may try, whatever became of others: some do well where most do not. Only when one
    after the other has tried in vain, most begin with a pause.
    """

    def __init__(self) -> None:
        self.by_position, self.by_confidence = PositionAcceptance(False), PositionAcceptance(True)
        self._failed = 0  # requests since the last one whose drafts paid
        self._left, self._pause = 0, FEWEST  # requests that begin with a pause, until one may try

    def may_try(self) -> bool:
        if self._failed < ENOUGH:
            return True
        if self._left:
            self._left -= 1
            return False
        self._left, self._pause = self._pause, min(2 * self._pause, MOST)
        return True

    def paid(self) -> None:
        self._failed, self._left, self._pause = 0, 0, FEWEST

    def failed(self) -> None:
        self._failed += 1

    def predict(
        self, request_id: str, length: int, confidence: Sequence[float] | None
    ) -> list[float]:
        """Return the acceptance of a draft's positions, given that those before them were
        accepted."""
        if confidence is None:
            return self.by_position.predict(request_id, length)
        return self.by_confidence.predict(request_id, length, confidence)

    def learn(
        self, request_id: str, accepted: int, judged: int, confidence: Sequence[float] | None
    ) -> None:
        self.by_position.learn(request_id, accepted, judged)
        if confidence is not None:
            self.by_confidence.learn(request_id, accepted, judged, confidence)

    def doubt(self, request_id: str) -> None:
        self.by_position.doubt(request_id)
        self.by_confidence.doubt(request_id)

    def forget(self, request_id: str) -> None:
        self.by_position.forget(request_id)
        self.by_confidence.forget(request_id)
