"""Which steps of a training are told of."""

from __future__ import annotations

LOG_EVERY = 10  # steps
SILENCE = 30.0  # seconds after which the next step is told of in any case


class Telling:
    """Chooses the steps that a run tells of: every tenth one, and the next one where it said
    nothing for SILENCE seconds. Times are seconds of the run, the same in all its processes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = self._told = seconds  # now, and when a step was told of last

    def is_due(self, step: int) -> bool:
        due = step % LOG_EVERY == 0 or self.seconds - self._told >= SILENCE
        if due:
            self._told = self.seconds
        return due
