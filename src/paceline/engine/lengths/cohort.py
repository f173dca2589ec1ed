"""What became of the drafts of requests that behave alike."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.engine.lengths.acceptance import Acceptance

FEWEST, MOST = 2, 32  # requests of a cohort that fails, for each one that may try


class CohortRecord:
    """Acceptance by position alone and by confidence as well; whether new requests may draft.

    `failing` says that drafts of a request that nothing is known of would not pay.
    """

    def __init__(self) -> None:
        self.by_position, self.by_confidence = Acceptance(False), Acceptance(True)
        self.failing = False
        self._left, self._pause = 0, FEWEST  # requests that begin with a pause, until one may try

    def may_try(self) -> bool:
        """Whether a new request drafts from the start."""
        if not self.failing:
            self._left, self._pause = 0, FEWEST
            return True
        if self._left:
            self._left -= 1
            return False
        self._left, self._pause = self._pause, min(2 * self._pause, MOST)
        return True

    def predict(
        self, request_id: str, length: int, confidence: Sequence[float] | None
    ) -> list[float]:
        """Of a draft's positions, given that those before them were accepted."""
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
