"""Draft lengths by what the measured costs say pays, over the whole batch, no draft included.

A draft token is worth the probability that it stands; it costs what one more row adds to the
forward, and its share of the drafting. The step's tokens per second, (requests + sum of survivals)
/ seconds, is maximised (after vLLM's adaptive verification). So drafts shrink as a batch grows or
as a request's drafts keep failing, and come back when there is room or a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from paceline.core import CutReason, DraftTree, Request
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.draft import Draft
from paceline.engine.lengths.base import Bound, LengthController
from paceline.engine.lengths.history import FIRST, TRIAL, CohortRecord, Pause
from paceline.engine.lengths.levels import Level, Levels
from paceline.engine.lengths.optimum import NOTHING, PlainStep, best_drafts, best_lengths
from paceline.engine.scheduler import Scheduled

FREE = 0.04  # drafting that takes less than this share of a step is not worth a thought
HOPE = 0.9  # acceptance of a position, were the drafts good: does the load leave room for those?
WORTH = 1.01  # times the plain speed: what good drafts must bring for that
KNOWN = 64  # drafts that were judged, until which a drafter may turn out to be perfect
PATIENCE = 8  # steps without that room until a drafter does not even see the text
NEGLIGIBLE = 0.01  # a draft token less likely to stand than this is never worth a row
MOST_RECORDS = 512  # of cohorts, which come and go with the traffic
PROVED = 4  # rounds that accepted something, after which the next pause is a short one again

HOT = 0.85  # a temperature from which on text is much harder to draft than below

Cohort = tuple[str, str, int, bool]


@dataclass(slots=True)
class _State:
    pause: Pause = field(default_factory=Pause)
    asked: bool = False  # in this step
    accepted: int = 0  # rounds since its last pause whose draft stood, at least its first token
    new: bool = True  # never asked yet: it may do better than others of its cohort
    failed: bool = False  # its drafts did not pay, and have not since
    erred: bool = False  # a token that its drafter proposed was wrong


class ThroughputLengths(LengthController):
    """Maximises expected committed tokens per second of each step.

    Proposals are judged by what the round commits, whether they were verified or not: the first
    token of a draft that was cut away costs no row and is judged as well. A drafter that costs
    something is not asked for a request whose drafts do not pay; the request tries again after a
    pause, twice as long each time. Where the load is the reason, no request is asked until the load
    falls.
    """

    anticipating = True

    def __init__(self, costs: Costs, cuts: bool = True, looking_up: Collection[str] = ()) -> None:
        """`cuts` says that drafts may be cut after they are drawn: not where a rule judges them by
        their q. Drafters `looking_up` have drafts that take no time beside those they are asked
        for; the collection may change with the drafters."""
        self.costs, self._cuts, self._looking_up = costs, cuts, looking_up
        self._levels: dict[str, Levels] = {}
        self._level: dict[str, Level] = {}  # by drafter: of this step
        self._decoding = 0  # requests that get a token from this step
        self._before = 0  # tokens that their rows look back on
        self._alike = True  # whether all of its requests decode, with the same drafter or none
        self._records: dict[Cohort, CohortRecord] = defaultdict(CohortRecord)
        self._states: dict[str, _State] = {}
        self._idle: dict[str, int] = defaultdict(int)  # by drafter: steps without room for drafts
        self._load: dict[str, int] = {}  # by drafter: requests at once in the last of those
        self._clock: dict[str, int] = defaultdict(int)  # by drafter: steps
        self._spent: dict[str, float] = {}  # by drafter: seconds that this step's drafts take

    def begin_step(self, scheduled: Sequence[Scheduled]) -> None:
        self._decoding, self._alike, self._before = 0, True, 0
        cohorts = defaultdict(set)
        for entry in scheduled:
            request = entry.request
            self._decoding += entry.samples
            if not entry.chunk:
                self._before += entry.start
            if entry.chunk or entry.count > 1 or request.drafter != scheduled[0].request.drafter:
                self._alike = False
            if request.drafter is not None and request.policy == "throughput":
                cohorts[request.drafter].add((request.cohort, _heat(request)))
        self._level = {
            name: self._levels_of(name).level(self._decoding, seen)
            for name, seen in cohorts.items()
        }

    def _levels_of(self, name: str) -> Levels:
        levels = self._levels.get(name)
        if levels is None:
            levels = self._levels[name] = Levels(self.costs.step, name in self._looking_up)
        return levels

    def end_step(self, scheduled: Sequence[Scheduled], tokens: int, seconds: float) -> None:
        decoding = self._decoding
        if self._alike and scheduled[0].request.drafter is None:
            for levels in self._levels.values():
                levels.observe_plain(decoding, seconds)
        for name in self._level:
            if self._alike:
                self._levels[name].observe(decoding, tokens, seconds)
            else:
                self._levels[name].observe_mixed(decoding)

    def sees(self, request: Request) -> bool:
        name = request.drafter or ""
        return self._idle[name] < PATIENCE and self._level.get(name, Level.ALL) is Level.ALL

    def drafts(self, request: Request) -> bool:
        return self._level.get(request.drafter or "", Level.ALL) > Level.NONE

    def looks_up(self, request: Request) -> bool:
        return self.drafts(request)  # a row that does not pay is cut

    def draft_lengths(
        self, batch: Sequence[Scheduled], *, rows: int, decoding: int, longest: int
    ) -> list[Bound]:
        name = batch[0].request.drafter or ""
        if self._level.get(name, Level.ALL) is not Level.ALL:
            return [Bound(0, CutReason.COST)] * len(batch)
        self._clock[name] += 1
        states = [self._state(entry.request) for entry in batch]
        if self._clock[name] % FIRST and all(state.pause.left for state in states):
            return [Bound(0, CutReason.REST)] * len(batch)  # as good as no drafter
        if self._idle[name] >= PATIENCE and decoding >= self._load[name] and self._clock[name] % 8:
            return [Bound(0, CutReason.COST)] * len(batch)  # no less load than when none paid
        limits = [min(entry.draft_limit, longest) for entry in batch]
        price = self.costs.of(name)
        drafting = price.draft_seconds(limits) + price.observe_seconds(len(batch))
        if self._cuts and drafting < FREE * self.costs.step(rows, decoding):
            self._idle[name] = 0
            self._spent[name] = drafting
            for state in states:
                state.pause, state.asked = Pause(), True
            return [Bound(limit) for limit in limits]  # cut when the drafts are known
        lengths = [0] * len(batch)
        awake = [index for index, state in enumerate(states) if not state.pause.left]
        if awake:
            step = self._plain_step(rows, decoding, price)
            entries, most = [batch[index] for index in awake], [limits[index] for index in awake]
            chosen = self._worth_drafting(name, step, entries, most)
            for index, length in zip(awake, chosen, strict=True):
                # A look-up is compared with the longest draft of a pass, which takes no longer.
                compared = price.parallel and self._cuts and batch[index].draft.looked_up
                lengths[index] = limits[index] if length and compared else length
        asked = [length for length in lengths if length]
        spent = price.draft_seconds(asked) + price.observe_seconds(len(asked))
        self._spent[name] = spent if asked else 0.0
        bounds = []
        for state, length, limit in zip(states, lengths, limits, strict=True):
            state.asked = length > 0
            reason = CutReason.REST if state.pause.left else CutReason.COST
            bounds.append(Bound(length, reason if length < limit else None))
        return bounds

    def _plain_step(self, rows: int, decoding: int, price: DraftCost = NOTHING) -> PlainStep:
        cost, before = self.costs.step, self._before
        back = cost.looking_back(before, 1)
        row_back = cost.attending(before // max(1, decoding), 2)
        return PlainStep(rows, decoding, cost, price, back, row_back)

    def _worth_drafting(
        self, name: str, step: PlainStep, batch: list[Scheduled], limits: list[int]
    ) -> list[int]:
        """Return draft lengths of requests that do not pause; where none pays, a pause begins."""
        curves = [self._survivals(e.request, n) for e, n in zip(batch, limits, strict=True)]
        best = best_drafts(step, curves)
        # What is asked for can be cut when the drafts are known, but not made longer.
        lengths = best.asked if self._cuts else best.kept
        if not any(lengths) and not self._hopeful(step, curves):
            lengths = self._untried(step, batch, limits)
            if not any(lengths):
                self._idle[name] += 1
                self._load[name] = step.decoding
            return lengths
        self._idle[name] = 0
        for index, (entry, length) in enumerate(zip(batch, lengths, strict=True)):
            state = self._state(entry.request)
            if not length and (state.pause.trial or state.new):
                state.pause.trial = state.pause.trial or TRIAL
                lengths[index] = min(TRIAL, limits[index])
            elif not length:
                state.pause.begin(self._clock[name])
                state.accepted = 0
                record = self._record(entry.request)
                record.doubt(entry.request.id)
                if not state.failed:
                    state.failed = True
                    record.failed()
            state.new = False
        return lengths

    def _untried(self, step: PlainStep, batch: list[Scheduled], limits: list[int]) -> list[int]:
        """Return the lengths for requests whose drafts hardly anybody has judged, and of which no
        token was wrong, where perfect drafts of theirs would pay; else zeros."""
        perfect = [
            [] if self._known(entry.request) else [1.0] * limit
            for entry, limit in zip(batch, limits, strict=True)
        ]
        best = best_drafts(step, perfect) if any(perfect) else None
        if best is None or best.speed <= WORTH * step.speed:
            return [0] * len(batch)
        return best.asked if self._cuts else best.kept

    def _known(self, request: Request) -> bool:
        """Return whether drafts for a request, or for those that behave like it, were judged."""
        return self._state(request).erred or self._record(request).by_position.judged >= KNOWN

    def _hopeful(self, step: PlainStep, curves: list[list[float]]) -> bool:
        """Return whether good drafts would pay in this step."""
        good = [
            [max(survival, HOPE**position) for position, survival in enumerate(curve, 1)]
            for curve in curves
        ]
        return best_drafts(step, good).speed > WORTH * step.speed

    def verify_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        survivals = [
            [survival for survival in self._drafted_survivals(entry) if survival >= NEGLIGIBLE]
            for entry in batch
        ]
        names = {entry.request.drafter or "" for entry in batch if not entry.draft.looked_up}
        spent = sum(self._spent.get(name, 0.0) for name in names)
        _, lengths = best_lengths(self._plain_step(rows, decoding), survivals, spent)
        return lengths

    def observe(self, entry: Scheduled, committed: Sequence[int]) -> None:
        """Judge the draft, as it was before any cut, up to its first wrong token."""
        request, draft = entry.request, entry.draft
        state = self._state(request)
        if state.pause.left or (state.pause.trial and state.asked):
            state.pause.tick()
        if not (state.asked or draft.tokens):
            return
        asked, state.asked = state.asked, False
        accepted, judged = _judged(draft, committed)
        if asked and (draft.looked_up or not judged):
            # A proposal that was passed over counts as it stood; none counts as a failure.
            stood, compared = _judged(Draft(tokens=draft.passed_over), committed)
            self._record(request).by_position.learn(request.id, stood, compared or 1)
            state.erred = state.erred or stood < compared
        if not judged:
            return
        if not draft.looked_up:
            state.erred = state.erred or accepted < judged
        if accepted and not draft.looked_up:
            state.accepted += 1
            if state.accepted == PROVED:
                state.failed = False
                state.pause.length = FIRST
                self._record(request).paid()
        confidence = draft.confidence if self._cuts or draft.q is None else None
        self._record(request, draft.looked_up).learn(request.id, accepted, judged, confidence)

    def forget(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        for record in self._records.values():
            record.forget(request_id)

    def forget_drafter(self, name: str) -> None:
        for table in (self._levels, self._level, self._idle, self._load, self._clock, self._spent):
            table.pop(name, None)
        for cohort in [cohort for cohort in self._records if cohort[0] == name]:
            del self._records[cohort]

    def _state(self, request: Request) -> _State:
        state = self._states.get(request.id)
        if state is None:
            state = self._states[request.id] = _State()
            record = self._begin(request)
            if not record.may_try():
                state.pause = Pause(length=2 * FIRST)  # others have tried for it
                state.pause.begin(self._clock[request.drafter or ""])
        return state

    def _begin(self, request: Request) -> CohortRecord:
        """Return the record of a new request's cohort. Records are bounded: those whose latest
        request began longest ago are dropped."""
        name, heat = request.drafter or "", _heat(request)
        for looked_up in (True, False):
            record = self._records.pop((name, request.cohort, heat, looked_up), None)
            if record is not None:
                self._records[name, request.cohort, heat, looked_up] = record
        while len(self._records) > MOST_RECORDS:
            del self._records[next(iter(self._records))]
        return self._record(request)

    def _survivals(self, request: Request, length: int) -> list[float]:
        """The probability that a draft still to be made stands up to each position."""
        rates = self._record(request).by_position.predict(request.id, length)
        return list(accumulate(rates, mul))

    def _drafted_survivals(self, entry: Scheduled) -> Iterator[float]:
        """The same for a draft that is made. What a grammar forces stands whenever the tokens
        before it do."""
        draft = entry.draft
        record = self._record(entry.request, draft.looked_up)
        if draft.tree is not None:
            return self._tree_survivals(entry.request.id, draft.tree, record)
        count = len(draft.tokens) - len(draft.forced)
        rates = iter(record.predict(entry.request.id, count, draft.confidence))
        places = range(len(draft.tokens))
        return accumulate((1.0 if i in draft.forced else next(rates) for i in places), mul)

    @staticmethod
    def _tree_survivals(request_id: str, tree: DraftTree, record: CohortRecord) -> Iterator[float]:
        """The same for the nodes of a tree, none of them larger than those before it: what is
        learned of the drafter's chances may change their order, but not that of the nodes."""
        reached = {-1: (1.0, 0)}  # survival and depth
        nodes = zip(tree.parents, tree.chances, strict=True)
        for node, (parent, chance) in enumerate(nodes):
            survival, depth = reached[parent]
            rate = record.by_confidence.at(request_id, depth, chance)
            reached[node] = survival * rate, depth + 1
        del reached[-1]
        return accumulate((survival for survival, _ in reached.values()), min)

    def _record(self, request: Request, looked_up: bool = False) -> CohortRecord:
        """The hotter text is sampled, the harder it is to draft, and looked-up drafts stand more or
        less often than proposed ones: each is counted apart."""
        cohort = request.drafter or "", request.cohort, _heat(request), looked_up
        return self._records[cohort]


def _heat(request: Request) -> int:
    """Return 0 for a greedy request, 1 for a sampled one, 2 for one that is sampled freely."""
    return 0 if request.params.greedy else 1 + (request.params.temperature >= HOT)


def _judged(draft: Draft, committed: Sequence[int]) -> tuple[int, int]:
    """Return how many tokens of a draft stand and how many were judged; the forced ones, which are
    no merit of the drafter, are left out."""
    accepted = judged = 0
    for place, (token, true) in enumerate(zip(draft.tokens, committed, strict=False)):
        if place in draft.forced:
            continue
        judged += 1
        if token != true:
            break
        accepted += 1
    return accepted, judged
