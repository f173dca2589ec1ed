"""Draft lengths by what the measured costs say pays, over the whole batch, no draft included.

A draft token is worth the probability that it stands; it costs what one more row adds to the
forward, and its share of the drafting. The step's tokens per second, (requests + sum of survivals)
/ seconds, is maximised (after vLLM's adaptive verification). So drafts shrink as a batch grows or
as a request's drafts keep failing, and come back when there is room or a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from paceline.core import Request
from paceline.engine.costs import Costs
from paceline.engine.lengths.base import with_forced
from paceline.engine.lengths.cohort import CohortRecord
from paceline.engine.lengths.optimum import PlainStep, best_drafts, best_lengths
from paceline.engine.lengths.rest import FIRST, TRIAL, Rest
from paceline.engine.scheduler import Scheduled

FREE = 0.04  # drafting that takes less than this share of a step is not worth a thought
HOPE = 0.9  # acceptance of a position, were the drafts good: does the load leave room for those?
WORTH = 1.01  # times the plain speed: what good drafts must bring for that
PATIENCE = 8  # steps without that room until a drafter does not even see the text
NEGLIGIBLE = 0.01  # a draft token less likely to stand than this is never worth a row
PROVED = 4  # rounds that accepted something, after which the next pause is a short one again

Cohort = tuple[str, str, bool, bool]


@dataclass(slots=True)
class _State:
    """One request."""

    rest: Rest = field(default_factory=Rest)
    asked: bool = False  # in this step
    accepted: int = 0  # rounds since its last pause whose draft stood, at least its first token
    new: bool = True  # never asked yet: it may do better than others of its cohort
    failed: bool = False  # its drafts did not pay, and have not since
    proposal: list[int] = field(default_factory=list)  # as it was before any cut
    forced: frozenset[int] = frozenset()  # which of its tokens the grammar left no choice about
    confidence: Sequence[float] | None = None


class ThroughputLengths:
    """Maximises expected committed tokens per second of each step.

    Proposals are judged by what the round commits, whether they were verified or not: the first
    token of a draft that was cut away costs no row and is judged as well. A drafter that costs
    something is not asked for a request whose drafts don't pay; the request tries again after a
    pause, twice as long each time. Where the load is the reason, nobody is asked until it falls.
    """

    anticipating = True

    def __init__(self, costs: Costs, cuts: bool = True) -> None:
        """`cuts` says that drafts may be cut after they are drawn: not where a rule judges them by
        their q."""
        self.costs, self._cuts = costs, cuts
        self._records: dict[Cohort, CohortRecord] = defaultdict(CohortRecord)
        self._states: dict[str, _State] = {}
        self._idle: dict[str, int] = defaultdict(int)  # by drafter: steps without room for drafts
        self._load: dict[str, int] = {}  # by drafter: requests at once in the last of those
        self._clock: dict[str, int] = defaultdict(int)  # by drafter: steps
        self._spent: dict[str, float] = {}  # by drafter: seconds that this step's drafts take

    def sees(self, request: Request) -> bool:
        return self._idle[request.drafter or ""] < PATIENCE

    def looks_up(self, request: Request) -> bool:
        return True  # a row that does not pay is cut

    def draft_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        name = batch[0].request.drafter or ""
        self._clock[name] += 1
        states = [self._state(entry.request) for entry in batch]
        if self._clock[name] % FIRST and all(state.rest.left for state in states):
            for entry in batch:  # nothing to decide: as good as no drafter
                entry.cut_by = "rest"
            return [0] * len(batch)
        if self._idle[name] >= PATIENCE and decoding >= self._load[name] and self._clock[name] % 8:
            for entry in batch:  # no less load than when there was no room
                entry.cut_by = "cost"
            return [0] * len(batch)
        price, room = self.costs.of(name), [entry.ask_room for entry in batch]
        step = PlainStep(rows, decoding, self.costs.step, price)
        drafting = price.propose(room) + price.observe(len(batch))
        if self._cuts and drafting < FREE * self.costs.step(rows, decoding):
            self._idle[name] = 0
            self._spent[name] = drafting
            for state in states:
                state.rest, state.asked = Rest(), True
            return room  # cut when the drafts are known
        lengths = [0] * len(batch)
        awake = [index for index, state in enumerate(states) if not state.rest.left]
        if awake:
            found = self._worth_drafting(name, step, [batch[index] for index in awake])
            for index, length in zip(awake, found, strict=True):
                lengths[index] = length
        for entry, state, length in zip(batch, states, lengths, strict=True):
            state.asked = length > 0
            if length < entry.ask_room:
                entry.cut_by = "rest" if state.rest.left else "cost"
        asked = [length for length in lengths if length]
        self._spent[name] = price.propose(asked) + price.observe(len(asked)) if asked else 0.0
        return lengths

    def _worth_drafting(self, name: str, step: PlainStep, batch: list[Scheduled]) -> list[int]:
        """Lengths of drafts from requests that are not pausing; who does not pay pauses now."""
        curves = [self._survivals(entry) for entry in batch]
        best = best_drafts(step, curves)
        # What is asked for can be cut when the drafts are known, but not made longer.
        lengths = best.asked if self._cuts else best.kept
        if not any(lengths) and not self._hopeful(step, curves):
            self._idle[name] += 1
            self._load[name] = step.decoding
            return lengths
        self._idle[name] = 0
        for index, (entry, length) in enumerate(zip(batch, lengths, strict=True)):
            state = self._state(entry.request)
            if not length and (state.rest.trial or state.new):
                state.rest.trial = state.rest.trial or TRIAL
                lengths[index] = min(TRIAL, entry.ask_room)
            elif not length:
                state.rest.begin(self._clock[name])
                state.accepted = 0
                record = self._record(entry.request)
                record.doubt(entry.request.id)
                if not state.failed:
                    state.failed = True
                    record.failed()
            state.new = False
        return lengths

    def _hopeful(self, step: PlainStep, curves: list[list[float]]) -> bool:
        """Whether good drafts would pay in this step."""
        good = [
            [max(survival, HOPE**position) for position, survival in enumerate(curve, 1)]
            for curve in curves
        ]
        return best_drafts(step, good).speed > WORTH * step.speed

    def verify_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        survivals = []
        for entry in batch:
            state = self._state(entry.request)
            record = self._record(entry.request, entry.looked_up)
            state.proposal, state.forced = list(entry.draft), entry.forced
            state.confidence = entry.confidence
            drafted = len(entry.draft) - len(entry.forced)
            known = record.predict(entry.request.id, drafted, entry.confidence)
            rates = with_forced(entry, known)
            survivals.append([s for s in accumulate(rates, mul) if s >= NEGLIGIBLE])
        names = {entry.request.drafter or "" for entry in batch if not entry.looked_up}
        spent = sum(self._spent.get(name, 0.0) for name in names)
        _, lengths = best_lengths(PlainStep(rows, decoding, self.costs.step), survivals, spent)
        for entry, length in zip(batch, lengths, strict=True):
            if length < len(entry.draft):
                entry.cut_by = "cost"
        return lengths

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        """They judge the proposal up to its first wrong token."""
        request = entry.request
        state = self._state(request)
        if state.rest.left or (state.rest.trial and state.asked):
            state.rest.tick()
        if not (state.asked or state.proposal or entry.draft):
            return
        proposal, forced, confidence = state.proposal, state.forced, state.confidence
        asked, state.asked = state.asked, False
        state.proposal, state.confidence = [], None
        if not proposal:
            proposal = entry.draft  # one that must not be cut
            forced = entry.forced
        accepted = judged = 0
        for index, (token, true) in enumerate(zip(proposal, committed, strict=False)):
            if index in forced:  # no merit of the drafter
                continue
            judged += 1
            if token != true:
                break
            accepted += 1
        if asked and (entry.looked_up or not judged):
            # It had nothing to say: that, too, tells what asking it brings.
            self._record(request).by_position.learn(request.id, 0, 1)
        if not judged:
            return
        if accepted and not entry.looked_up:
            state.accepted += 1
            if state.accepted == PROVED:
                state.failed = False
                state.rest.proved()
                self._record(request).paid()
        record = self._record(request, entry.looked_up)
        record.learn(request.id, accepted, judged, confidence)

    def forget(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        for record in self._records.values():
            record.forget(request_id)

    # -- inside -----------------------------------------------------------------------------------

    def _state(self, request: Request) -> _State:
        state = self._states.get(request.id)
        if state is None:
            state = self._states[request.id] = _State()
            record = self._record(request)
            if not record.may_try():
                state.rest = Rest(pause=2 * FIRST)  # others have tried for it
                state.rest.begin(self._clock[request.drafter or ""])
        return state

    def _survivals(self, entry: Scheduled) -> list[float]:
        """Of a draft that is still to be made: that it stands up to each position."""
        rates = self._record(entry.request).by_position.predict(entry.request.id, entry.ask_room)
        return list(accumulate(rates, mul))

    def _record(self, request: Request, looked_up: bool = False) -> CohortRecord:
        return self._records[self._cohort(request, looked_up)]

    def _cohort(self, request: Request, looked_up: bool) -> Cohort:
        """Greedy text is easier to draft than sampled text, whoever asks for it; and what a drafter
        looks up is another thing than what it is asked for."""
        return request.drafter or "", request.cohort, request.params.greedy, looked_up
