"""The drafters of an engine, which come and go between two steps."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.drafters.base import Drafter
from paceline.engine.costs import newcomer_cost
from paceline.engine.drafting import Drafting
from paceline.engine.roster import Roster


class Lineup:
    """Adds and removes drafters. Belongs to the engine's thread.

    A request keeps the drafter that it was made with: a drafter that `retires` leaves when its last
    request has ended. Nothing is loaded or freed here.
    """

    def __init__(
        self,
        drafters: dict[str, Drafter],
        specs: Mapping[str, str],
        drafting: Drafting,
        roster: Roster,
    ) -> None:
        """`drafters` is the mapping that the engine drafts with; `specs` say how each was named."""
        self.drafters, self.specs = drafters, dict(specs)
        self.retiring: set[str] = set()
        self._drafting, self._roster = drafting, roster

    def join(self, drafter: Drafter, spec: str) -> None:
        """Take in a drafter that is attached to the target."""
        cost = newcomer_cost(drafter, self.drafters, self._drafting.costs)
        self.drafters[drafter.name], self.specs[drafter.name] = drafter, spec
        self._drafting.add(drafter.name, cost)

    def retire(self, name: str) -> None:
        """Let a drafter leave when its last request has ended. The caller makes no new ones."""
        self.retiring.add(name)

    def leave(self) -> list[Drafter]:
        """Remove the retiring drafters that have no request left, and return them. The caller frees
        their memory."""
        used = {request.drafter for request in self._roster.requests.values()}
        left = []
        for name in self.retiring - used:
            self.retiring.discard(name)
            key = self._drafting.key(name)
            left.append(self.drafters.pop(name))
            del self.specs[name]
            self._drafting.remove(name, key)
        return left
