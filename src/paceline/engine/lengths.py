"""How long the drafts of a step are: fixed, or what the measured costs say pays.

A draft token is worth the probability that it stands; it costs what one more row adds to the
forward. The step's tokens per second, (requests + sum of survivals) / cost(rows), is maximised over
the whole batch, no draft at all included (after vLLM's adaptive verification). So drafts shrink as
a batch grows or as a request's drafts keep failing, and come back when there is room or a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.engine.budget import StepCost
from paceline.engine.scheduler import Scheduled

UNKNOWN = 0.7  # acceptance of a position before anything is known of the drafter
BINS = 10  # of a drafter's confidence, each with a record of its own
PRIOR = 4.0  # judged positions that the confidence itself counts as, in each bin
KEPT = 0.995  # what a judged position leaves of the drafter's record before it
WEIGHT = 2.0  # judged positions that the drafter's record counts as, in a request's own
MEMORY = 0.85  # what a round leaves of the request's evidence before it
FREE = 0.01  # a pass that takes less than this share of a step is not counted as a cost
FORGIVENESS = 0.97  # what a round without a proposal leaves of it: a failed drafter tries again


class LengthController(Protocol):
    """`anticipating` says that verify_lengths looks at drawn tokens' confidence. The engine does
    not ask it about drafts that were sampled and are judged by their q: that cut would be biased.
    """

    anticipating: bool

    def draft_lengths(self, batch: Sequence[Scheduled]) -> list[int]: ...
    def verify_lengths(
        self,
        batch: Sequence[Scheduled],
        confidence: Sequence[Sequence[float] | None],
        *,
        rows: int,
        decoding: int,
    ) -> list[int]: ...
    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None: ...
    def timed(self, drafter: str, tokens: int, seconds: float, parallel: bool) -> None: ...
    def forget(self, request_id: str) -> None: ...


class FixedLengths:
    """Every draft as long as asked for and as there is room."""

    anticipating = False

    def draft_lengths(self, batch: Sequence[Scheduled]) -> list[int]:
        return [entry.draft_room for entry in batch]

    def verify_lengths(
        self,
        batch: Sequence[Scheduled],
        confidence: Sequence[Sequence[float] | None],
        *,
        rows: int,
        decoding: int,
    ) -> list[int]:
        return [len(entry.draft) for entry in batch]

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None: ...
    def timed(self, drafter: str, tokens: int, seconds: float, parallel: bool) -> None: ...
    def forget(self, request_id: str) -> None: ...


class Record:
    """What became of one drafter's proposals, of all requests: acceptance by its confidence."""

    def __init__(self) -> None:
        self._accepted = [0.0] * BINS
        self._judged = [0.0] * BINS

    def acceptance(self, confidence: float) -> float:
        """Of a position that the drafter gives `confidence`, if those before it were accepted."""
        bin_ = _bin(confidence)
        return (self._accepted[bin_] + PRIOR * confidence) / (self._judged[bin_] + PRIOR)

    @property
    def rate(self) -> float:
        """Acceptance of a position, whatever the confidence."""
        return (sum(self._accepted) + PRIOR * UNKNOWN) / (sum(self._judged) + PRIOR)

    def add(self, confidence: float, accepted: bool) -> None:
        bin_ = _bin(confidence)
        self._accepted[bin_] = KEPT * self._accepted[bin_] + accepted
        self._judged[bin_] = KEPT * self._judged[bin_] + 1

    def fade(self) -> None:
        self._accepted = [KEPT * value for value in self._accepted]
        self._judged = [KEPT * value for value in self._judged]


def _bin(confidence: float) -> int:
    return min(BINS - 1, int(BINS * confidence))


@dataclass(slots=True)
class Evidence:
    """How a request's drafts fare beside the drafter's record: decayed sums over positions."""

    accepted: float = 0.0
    expected: float = 0.0  # accepted, had the record been right
    judged: float = 0.0

    @property
    def factor(self) -> float:
        """What the record's acceptance has to be multiplied with."""
        return (self.accepted + WEIGHT) / (self.expected + WEIGHT)

    def rate(self, usual: float) -> float:
        """Acceptance of a position, given that those before it were accepted."""
        return (self.accepted + WEIGHT * usual) / (self.judged + WEIGHT)

    def fade(self, factor: float) -> None:
        self.accepted *= factor
        self.expected *= factor
        self.judged *= factor


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft as it was proposed, before any cut, and what was thought of its positions."""

    tokens: list[int]
    confidence: Sequence[float]
    acceptance: Sequence[float]


class ThroughputLengths:
    """Maximises expected committed tokens per second of each step.

    Proposals are judged by what the round commits, whether they were verified or not: the first
    token of a draft that was cut away costs no row and is judged as well. So a drafter that is
    cheap to ask needs no probing to find out that it has become good.
    """

    anticipating = True

    def __init__(self, cost: StepCost, cuts: bool = True) -> None:
        """`cuts` says that drafts may be cut after they are drawn: not where a rule judges them by
        their q."""
        self.cost, self._cuts = cost, cuts
        self._records: dict[str, Record] = defaultdict(Record)
        self._evidence: dict[str, Evidence] = defaultdict(Evidence)
        self._proposals: dict[str, Proposal] = {}
        # By drafter: of each pass, and whether one pass drafts all tokens.
        self._draft_seconds: dict[str, tuple[float, bool]] = {}

    def draft_lengths(self, batch: Sequence[Scheduled]) -> list[int]:
        """Bounds on the drafts of one drafter, before it drafts; zero where drafting cannot pay."""
        name = batch[0].request.drafter or ""
        seconds, parallel = self._draft_seconds.get(name, (0.0, False))
        room = [entry.draft_room for entry in batch]
        if seconds < FREE * self.cost(len(batch)):
            return room  # cut when the drafts are known
        record = self._records[name]
        usual = record.rate
        rates = [self._evidence[entry.request.id].rate(usual) for entry in batch]
        tokens, rows = float(len(batch)), len(batch)
        best, most = 0, tokens / self.cost(rows)
        for length in range(1, max(room) + 1):
            for rate, limit in zip(rates, room, strict=True):
                if length <= limit:
                    tokens += rate**length
                    rows += 1
            speed = tokens / (self.cost(rows) + seconds * (1 if parallel else length))
            if speed > most:
                best, most = length, speed
        if best == 0:
            record.fade()
            for entry in batch:
                self._evidence[entry.request.id].fade(FORGIVENESS)
        if parallel and best and self._cuts:
            return room  # the pass costs the same: cut when the drafts are known
        return [min(best, limit) for limit in room]

    def verify_lengths(
        self,
        batch: Sequence[Scheduled],
        confidence: Sequence[Sequence[float] | None],
        *,
        rows: int,
        decoding: int,
    ) -> list[int]:
        """How much of each draft to verify, in a step that without any of them has `rows` rows and
        gives `decoding` requests, those in `batch` and others, a token each."""
        survivals: list[tuple[float, int]] = []
        for index, (entry, known) in enumerate(zip(batch, confidence, strict=True)):
            if not entry.draft:
                continue
            proposal = self._proposal(entry, known)
            self._proposals[entry.request.id] = proposal
            factor, survival = self._evidence[entry.request.id].factor, 1.0
            for acceptance in proposal.acceptance:
                survival *= min(1.0, acceptance * factor)
                survivals.append((survival, index))
        # Survival falls along a draft, so the best tokens of the batch are prefixes of its drafts.
        survivals.sort(key=lambda pair: -pair[0])
        # A prompt's rows make every further row dearer, but they are no price of these tokens.
        tokens, prompts = float(decoding), self.cost(rows) - self.cost(decoding)
        kept, most = 0, tokens / self.cost(decoding)
        for count, (survival, _) in enumerate(survivals, 1):
            tokens += survival
            speed = tokens / (self.cost(rows + count) - prompts)
            if speed > most:
                kept, most = count, speed
        lengths = [0] * len(batch)
        for _, index in survivals[:kept]:
            lengths[index] += 1
        return lengths

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        """A round ended with these tokens. They judge the proposal up to its first wrong token."""
        proposal = self._proposals.pop(entry.request.id, None)
        if proposal is None:
            if not entry.draft:
                return
            proposal = self._proposal(entry, None)  # one that must not be cut
        record = self._records[entry.request.drafter or ""]
        evidence = self._evidence[entry.request.id]
        evidence.fade(MEMORY)
        for index, (token, true) in enumerate(zip(proposal.tokens, committed, strict=False)):
            record.add(proposal.confidence[index], token == true)
            evidence.expected += proposal.acceptance[index]
            evidence.judged += 1
            if token != true:
                break
            evidence.accepted += 1

    def timed(self, drafter: str, tokens: int, seconds: float, parallel: bool) -> None:
        """Drafting `tokens` positions (the longest draft of the batch) took `seconds`, in as many
        passes or in a single one."""
        if tokens:
            now = seconds if parallel else seconds / tokens
            before, _ = self._draft_seconds.get(drafter, (now, parallel))
            self._draft_seconds[drafter] = 0.9 * before + 0.1 * now, parallel

    def forget(self, request_id: str) -> None:
        self._evidence.pop(request_id, None)
        self._proposals.pop(request_id, None)

    def _proposal(self, entry: Scheduled, confidence: Sequence[float] | None) -> Proposal:
        record = self._records[entry.request.drafter or ""]
        given = [UNKNOWN] * len(entry.draft) if confidence is None else confidence
        return Proposal(list(entry.draft), given, [record.acceptance(value) for value in given])
