"""Draft lengths that follow what was accepted of late, request by request.

After exllamav3's window: a moving average of accepted drafts, in which a draft that stood whole
counts as one more, since nobody knows how much further it would have gone. No costs are looked at.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from paceline.engine.lengths.base import WholeDrafts
from paceline.engine.lengths.rest import Rest
from paceline.engine.scheduler import Scheduled

START = 4.0
UP, DOWN = 0.4, 0.2  # share of a round's news, good or bad
FLOOR = 0.3  # below this many accepted tokens a round the request pauses
PROBE = 2  # tokens of the drafts that end a pause


@dataclass(slots=True)
class _Window:
    average: float
    rest: Rest = field(default_factory=Rest)


class EmaLengths(WholeDrafts):
    """Drafts ceil(average) tokens; pauses where next to nothing is accepted, longer each time."""

    def __init__(self, start: float = START) -> None:
        """`start` is how many accepted tokens a new request is thought good for."""
        self._windows: dict[str, _Window] = defaultdict(lambda: _Window(start))

    def draft_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        return [self._length(entry, self._windows[entry.request.id]) for entry in batch]

    def _length(self, entry: Scheduled, window: _Window) -> int:
        rest = window.rest
        if rest.left:
            entry.cut_by = "rest"
            return 0
        length = PROBE if rest.trial else math.ceil(window.average)
        if length < entry.draft_room:
            entry.cut_by = "ema"
        return min(length, entry.draft_room)

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        window = self._windows[entry.request.id]
        rest = window.rest
        was_trial = rest.trial > 0
        if rest.left or was_trial:
            rest.tick()
        if not entry.draft:
            return
        pairs = zip(entry.draft, committed, strict=False)
        stand = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        accepted = stand - sum(index < stand for index in entry.forced)
        news = accepted + (stand == len(entry.draft))
        if was_trial and accepted:
            rest.trial, window.average = 0, max(window.average, float(news))
            rest.proved()
        share = UP if news > window.average else DOWN
        window.average += share * (news - window.average)
        if window.average < FLOOR and not rest.trial:
            rest.begin()

    def forget(self, request_id: str) -> None:
        self._windows.pop(request_id, None)
