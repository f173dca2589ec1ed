"""How long the drafts of a step are: fixed, or what the measured costs say pays.

A draft token is worth the probability that it stands; it costs what one more row adds to the
forward. The step's tokens per second, (requests + sum of survivals) / cost(rows), is maximised over
the whole batch, no draft at all included (after vLLM's adaptive verification). So drafts shrink as
a batch grows or as a request's drafts keep failing, and come back when there is room or a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.engine.budget import StepCost
from paceline.engine.scheduler import Scheduled

UNKNOWN = 0.7  # confidence of a drafter that gives none, before anything is known of its drafts
WEIGHT = 2.0  # how many positions' worth of evidence the drafter's own confidence counts as
MEMORY = 0.85  # what a drafted round leaves of the evidence before it
FORGIVENESS = 0.97  # what a round without a draft leaves of it: a request that failed tries again


class LengthController(Protocol):
    """`anticipating` says that verify_lengths looks at drawn tokens' confidence. The engine does
    not ask it about drafts that were sampled and are judged by their q: that cut would be biased.
    """

    anticipating: bool

    def draft_lengths(self, batch: Sequence[Scheduled]) -> list[int]: ...
    def verify_lengths(
        self, batch: Sequence[Scheduled], confidence: Sequence[Sequence[float] | None], rows: int
    ) -> list[int]: ...
    def observe(self, entry: Scheduled, accepted: int) -> None: ...
    def timed(self, drafter: str, tokens: int, seconds: float) -> None: ...
    def forget(self, request_id: str) -> None: ...


class FixedLengths:
    """Every draft as long as asked for and as there is room."""

    anticipating = False

    def draft_lengths(self, batch: Sequence[Scheduled]) -> list[int]:
        return [entry.draft_room for entry in batch]

    def verify_lengths(
        self, batch: Sequence[Scheduled], confidence: Sequence[Sequence[float] | None], rows: int
    ) -> list[int]:
        return [len(entry.draft) for entry in batch]

    def observe(self, entry: Scheduled, accepted: int) -> None: ...
    def timed(self, drafter: str, tokens: int, seconds: float) -> None: ...
    def forget(self, request_id: str) -> None: ...


@dataclass(slots=True)
class Evidence:
    """What became of a request's drafts: decayed sums over the positions that were judged."""

    accepted: float = 0.0
    judged: float = 0.0
    confidence: float = 0.0  # how many the drafter thought would be accepted

    @property
    def calibration(self) -> float:
        """What the drafter's confidence has to be multiplied with."""
        return (self.accepted + WEIGHT) / (self.confidence + WEIGHT)

    @property
    def rate(self) -> float:
        """Acceptance of a position, given that those before it were accepted."""
        return (self.accepted + WEIGHT * UNKNOWN) / (self.judged + WEIGHT)

    def fade(self, factor: float) -> None:
        self.accepted *= factor
        self.judged *= factor
        self.confidence *= factor


class ThroughputLengths:
    """Maximises expected committed tokens per second of each step."""

    anticipating = True

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost
        self._evidence: dict[str, Evidence] = {}
        self._confidence: dict[str, Sequence[float]] = {}
        self._draft_seconds: dict[str, float] = {}  # per draft position, by drafter

    def draft_lengths(self, batch: Sequence[Scheduled]) -> list[int]:
        """Bounds on the drafts of one drafter, before it drafts; zero where drafting cannot pay."""
        name = batch[0].request.drafter
        seconds = self._draft_seconds.get(name or "", 0.0)
        room = [entry.draft_room for entry in batch]
        if seconds < 0.01 * self.cost(len(batch)):
            return room  # drafting is next to free: cut when the drafts are known
        rates = np.array([self._of(entry).rate for entry in batch])
        lengths = np.arange(max(room) + 1)
        survival = np.cumsum(rates[:, None] ** lengths, axis=1)  # position 0 is the bonus token
        reach = np.minimum(lengths, np.array(room)[:, None])
        tokens = np.take_along_axis(survival, reach, axis=1).sum(0)
        spent = self.cost.many(len(batch) + reach.sum(0)) + seconds * lengths
        best = int(np.argmax(tokens / spent))
        if best == 0:
            for entry in batch:
                self._of(entry).fade(FORGIVENESS)
        return [min(best, most) for most in room]

    def verify_lengths(
        self, batch: Sequence[Scheduled], confidence: Sequence[Sequence[float] | None], rows: int
    ) -> list[int]:
        """How much of each draft to verify, in a step of `rows` rows without any draft."""
        survivals, owners = [], []
        for index, (entry, known) in enumerate(zip(batch, confidence, strict=True)):
            if not entry.draft:
                continue
            given = known if known is not None else [UNKNOWN] * len(entry.draft)
            self._confidence[entry.request.id] = given
            calibrated = np.minimum(1.0, np.array(given) * self._of(entry).calibration)
            survivals.append(np.cumprod(calibrated))
            owners.append(np.full(len(given), index))
        lengths = [0] * len(batch)
        if not survivals:
            return lengths
        value, owner = np.concatenate(survivals), np.concatenate(owners)
        # Survival falls along a draft, so the best tokens of the batch are prefixes of its drafts.
        order = np.argsort(-value, kind="stable")
        tokens = len(batch) + np.concatenate([[0.0], np.cumsum(value[order])])
        spent = self.cost.many(rows + np.arange(len(value) + 1))
        kept = int(np.argmax(tokens / spent))
        for index in owner[order[:kept]]:
            lengths[index] += 1
        for entry, length in zip(batch, lengths, strict=True):
            if entry.draft and not length:
                self._of(entry).fade(FORGIVENESS)
        return lengths

    def observe(self, entry: Scheduled, accepted: int) -> None:
        """A draft was judged: `accepted` tokens stand, and the next, if there was one, does not."""
        judged = min(accepted + 1, len(entry.draft))
        given = self._confidence.get(entry.request.id)
        evidence = self._of(entry)
        evidence.fade(MEMORY)
        evidence.accepted += accepted
        evidence.judged += judged
        evidence.confidence += UNKNOWN * judged if given is None else sum(given[:judged])

    def timed(self, drafter: str, tokens: int, seconds: float) -> None:
        """Drafting `tokens` positions (the longest draft of the batch) took `seconds`."""
        if tokens:
            before = self._draft_seconds.get(drafter, seconds / tokens)
            self._draft_seconds[drafter] = 0.9 * before + 0.1 * seconds / tokens

    def forget(self, request_id: str) -> None:
        self._evidence.pop(request_id, None)
        self._confidence.pop(request_id, None)

    def _of(self, entry: Scheduled) -> Evidence:
        return self._evidence.setdefault(entry.request.id, Evidence())
