"""A pause that a request takes from drafting, twice as long each time it comes to nothing."""

from __future__ import annotations

from dataclasses import dataclass

FIRST, LONGEST = 16, 128  # rounds
LEAD = 8  # rounds before the end in which the drafter sees the text again: it needs a context
TRIAL = 2  # rounds after a pause that draft whatever is thought of them


@dataclass(slots=True)
class Rest:
    """`left` rounds to go, then `trial` rounds that draft and tell whether it was worth it."""

    left: int = 0
    trial: int = 0
    pause: int = FIRST

    def begin(self) -> None:
        self.left, self.pause = self.pause, min(2 * self.pause, LONGEST)

    def tick(self) -> None:
        """A round has passed."""
        if self.left:
            self.left -= 1
            if not self.left:
                self.trial = TRIAL
        elif self.trial:
            self.trial -= 1

    def proved(self) -> None:
        """Drafts are worth it again."""
        self.pause = FIRST

    @property
    def sees(self) -> bool:
        return self.left <= LEAD
