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

import numpy as np

from paceline.core import Request
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.lengths.acceptance import Acceptance
from paceline.engine.lengths.rest import TRIAL, Rest
from paceline.engine.scheduler import Scheduled

FREE = 0.01  # drafting that takes less than this share of a step is not worth a thought
HOPE = 0.9  # acceptance of a position, were the drafts good: does the load leave room for those?
PATIENCE = 16  # steps without that room until a drafter does not even see the text
NEGLIGIBLE = 0.01  # a draft token less likely to stand than this is never worth a row
PROVED = 8  # drafted rounds after which the next pause is a short one again
FEWEST, MOST = 2, 32  # requests of a cohort that fails, for each one that may try

Cohort = tuple[str, str, bool]


@dataclass(slots=True)
class _State:
    """One request."""

    rest: Rest = field(default_factory=Rest)
    asked: bool = False  # in this step
    drafted: int = 0  # rounds since its last pause
    proposal: list[int] = field(default_factory=list)  # as it was before any cut
    confidence: Sequence[float] | None = None


class _Record:
    """What became of a cohort's drafts, by position alone and by confidence as well."""

    def __init__(self) -> None:
        self.by_position, self.by_confidence = Acceptance(False), Acceptance(True)
        self.failing = False  # drafts of a request that nothing is known of would not pay
        self.left, self.pause = 0, FEWEST  # requests that begin with a pause, until one may try

    def may_try(self) -> bool:
        """Whether a new request drafts from the start."""
        if not self.failing:
            self.left, self.pause = 0, FEWEST
            return True
        if self.left:
            self.left -= 1
            return False
        self.left, self.pause = self.pause, min(2 * self.pause, MOST)
        return True


@dataclass(frozen=True, slots=True)
class _Step:
    """A step without drafts, and what they would cost in it."""

    rows: int
    decoding: int
    costs: Costs
    price: DraftCost

    @property
    def plain_speed(self) -> float:
        return self.decoding / self.costs.step(self.decoding, self.decoding)

    def best(self, survivals: list[list[float]]) -> tuple[float, list[int]]:
        """The highest tokens per second that drafts with these survivals allow, and the lengths;
        those of all requests are drafted together."""
        speed, lengths, longest = 0.0, [0] * len(survivals), max(map(len, survivals), default=0)
        # A pass that drafts everything costs the same whatever is kept of it.
        limits = [longest] if self.price.parallel else range(1, longest + 1)
        for limit in limits:
            seconds = self.price.propose(len(survivals), limit)
            now, kept = best_lengths(
                [row[:limit] for row in survivals],
                self.costs,
                self.rows,
                self.decoding,
                seconds,
                self.price,
            )
            if now <= speed:
                break
            speed, lengths = now, kept
        return speed, lengths


def best_lengths(
    survivals: Sequence[Sequence[float]],
    costs: Costs,
    rows: int,
    decoding: int,
    drafting: float = 0.0,
    observing: DraftCost | None = None,
) -> tuple[float, list[int]]:
    """Tokens per second of the best lengths, and those: how much to verify of each draft.

    Survival falls along a draft, so the likeliest tokens of the batch are prefixes of its drafts.
    A prompt's rows make every further row dearer, but they are no price of these tokens.
    """
    order = sorted(
        ((survival, index) for index, row in enumerate(survivals) for survival in row), reverse=True
    )
    gains = np.cumsum([0.0, *(survival for survival, _ in order)])
    prompts = costs.step(rows, decoding) - costs.step(decoding, decoding)
    seconds = costs.step.upwards(rows, len(order), decoding) - prompts + drafting
    if observing is not None:
        seconds += observing.observe(len(survivals)) + observing.marginal_row * gains
    speeds = (decoding + gains) / seconds
    kept = int(np.argmax(speeds))
    lengths = [0] * len(survivals)
    for _, index in order[:kept]:
        lengths[index] += 1
    return float(speeds[kept]), lengths


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
        self._records: dict[Cohort, _Record] = defaultdict(_Record)
        self._states: dict[str, _State] = {}
        self._idle: dict[str, int] = defaultdict(int)  # by drafter: steps without room for drafts

    def sees(self, request: Request) -> bool:
        idle = self._idle[request.drafter or ""]
        return idle < PATIENCE and self._state(request).rest.sees

    def draft_lengths(self, batch: Sequence[Scheduled], *, rows: int, decoding: int) -> list[int]:
        name = batch[0].request.drafter or ""
        price, room = self.costs.of(name), [entry.draft_room for entry in batch]
        step = _Step(rows, decoding, self.costs, price)
        states = [self._state(entry.request) for entry in batch]
        for state in states:
            state.asked = False
        drafting = price.propose(len(batch), max(room)) + price.observe(len(batch))
        if self._cuts and drafting < FREE * self.costs.step(rows, decoding):
            self._idle[name] = 0
            for state in states:
                state.rest = Rest()
            return room  # cut when the drafts are known
        awake = [index for index, state in enumerate(states) if not state.rest.left]
        lengths = self._worth_drafting(step, [batch[index] for index in awake])
        found = dict(zip(awake, lengths, strict=True))
        if price.parallel and self._cuts:  # the pass costs the same: cut when the drafts are known
            found = {index: room[index] if length else 0 for index, length in found.items()}
        for index, (entry, state) in enumerate(zip(batch, states, strict=True)):
            state.asked = found.get(index, 0) > 0
            if found.get(index, 0) < room[index]:
                entry.cut_by = "rest" if state.rest.left else "cost"
        return [found.get(index, 0) for index in range(len(batch))]

    def _worth_drafting(self, step: _Step, batch: Sequence[Scheduled]) -> list[int]:
        """Lengths of drafts from requests that are not pausing; who does not pay pauses now."""
        curves = [self._survivals(entry) for entry in batch]
        lengths = self._paying(step, curves)
        name = batch[0].request.drafter or "" if batch else ""
        without = [index for index, length in enumerate(lengths) if not length]
        if not without:
            self._idle[name] = 0
        elif not any(lengths) and not self._hopeful(step, curves):
            self._idle[name] += 1
            return lengths
        else:
            self._idle[name] = 0
        for index in without:
            entry, state = batch[index], self._state(batch[index].request)
            if state.rest.trial:
                lengths[index] = min(TRIAL, entry.draft_room)
            else:
                state.rest.begin()
                state.drafted = 0
                self._record(entry.request).by_position.doubt(entry.request.id)
                self._record(entry.request).by_confidence.doubt(entry.request.id)
        self._judge_cohorts(step, batch)
        return lengths

    def _paying(self, step: _Step, curves: list[list[float]]) -> list[int]:
        """The best lengths; none for a request that does not earn its own share of the drafting."""
        lengths, among = [0] * len(curves), list(range(len(curves)))
        for _ in range(2):  # who is left may do without those that don't pay, or not pay either
            if not among:
                return lengths
            speed, found = step.best([curves[index] for index in among])
            if speed <= step.plain_speed:
                return lengths
            price = speed * step.price.marginal(max(len(curves[index]) for index in among))
            row = speed * step.costs.step.row_seconds(step.rows, sum(found))
            worth = [
                sum(curves[index][:length]) - row * length - price
                for index, length in zip(among, found, strict=True)
            ]
            best = dict(zip(among, found, strict=True))
            paying = [index for index, gain in zip(among, worth, strict=True) if gain > 0]
            if len(paying) == len(among):
                break
            among = paying
        for index in among:
            lengths[index] = best[index]
        return lengths

    def _hopeful(self, step: _Step, curves: list[list[float]]) -> bool:
        """Whether good drafts would pay in this step."""
        good = [
            [max(survival, HOPE**position) for position, survival in enumerate(curve, 1)]
            for curve in curves
        ]
        return step.best(good)[0] > step.plain_speed

    def _judge_cohorts(self, step: _Step, batch: Sequence[Scheduled]) -> None:
        """Whether requests that nothing is known of would pay, in a batch like this."""
        for entry in {self._cohort(entry.request): entry for entry in batch}.values():
            record = self._record(entry.request)
            rates = record.by_position.predict(None, entry.draft_room)
            curve = list(accumulate(rates, mul))
            record.failing = step.best([curve] * len(batch))[0] <= step.plain_speed

    def verify_lengths(
        self,
        batch: Sequence[Scheduled],
        confidence: Sequence[Sequence[float] | None],
        *,
        rows: int,
        decoding: int,
    ) -> list[int]:
        survivals = []
        for entry, known in zip(batch, confidence, strict=True):
            state, record = self._state(entry.request), self._record(entry.request)
            state.proposal, state.confidence = list(entry.draft), known
            if known is None:
                rates = record.by_position.predict(entry.request.id, len(entry.draft))
            else:
                rates = record.by_confidence.predict(entry.request.id, len(entry.draft), known)
            survivals.append([s for s in accumulate(rates, mul) if s >= NEGLIGIBLE])
        _, lengths = best_lengths(survivals, self.costs, rows, decoding)
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
        elif state.asked:
            state.drafted += 1
            if state.drafted == PROVED:
                state.rest.proved()
        proposal, confidence = state.proposal, state.confidence
        state.proposal, state.confidence = [], None
        if not proposal:
            proposal = entry.draft  # one that must not be cut
        accepted = judged = 0
        for token, true in zip(proposal, committed, strict=False):
            judged += 1
            if token != true:
                break
            accepted += 1
        if not judged:
            return
        record = self._record(request)
        record.by_position.learn(request.id, accepted, judged)
        if confidence is not None:
            record.by_confidence.learn(request.id, accepted, judged, confidence)

    def forget(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        for record in self._records.values():
            record.by_position.forget(request_id)
            record.by_confidence.forget(request_id)

    # -- inside -----------------------------------------------------------------------------------

    def _state(self, request: Request) -> _State:
        state = self._states.get(request.id)
        if state is None:
            state = self._states[request.id] = _State()
            record = self._record(request)
            if not record.may_try():
                state.rest.begin()
            elif record.failing:
                state.rest.trial = TRIAL
        return state

    def _survivals(self, entry: Scheduled) -> list[float]:
        """Of a draft that is still to be made: that it stands up to each position."""
        rates = self._record(entry.request).by_position.predict(entry.request.id, entry.draft_room)
        return list(accumulate(rates, mul))

    def _record(self, request: Request) -> _Record:
        return self._records[self._cohort(request)]

    def _cohort(self, request: Request) -> Cohort:
        """Greedy text is easier to draft than sampled text, whoever asks for it."""
        return request.drafter or "", request.cohort, request.params.greedy
