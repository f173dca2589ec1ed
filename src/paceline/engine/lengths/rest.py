"""A pause that a request takes from drafting, twice as long each time it comes to nothing."""

from __future__ import annotations

from dataclasses import dataclass

FIRST, LONGEST = 16, 128  # rounds
TRIAL = 2  # rounds after a pause that draft whatever is thought of them


@dataclass(slots=True)
class Rest:
    """`left` rounds to go, then `trial` rounds that draft and tell whether it was worth it."""

    left: int = 0
    trial: int = 0
    pause: int = FIRST

    def begin(self, clock: int = 0) -> None:
        """About `pause` rounds from `clock` on, up to a multiple of it: requests that pause side by
        side try again in the same step, and share its cost."""
        end = (clock + self.pause // 2) // self.pause * self.pause + self.pause
        self.left, self.pause = end - clock, min(2 * self.pause, LONGEST)

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
