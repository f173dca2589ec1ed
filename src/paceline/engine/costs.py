"""Seconds of a step and of its drafts: the target's step by rows, each drafter by its requests.

Everything that decides about drafts, or says what they brought, reads the same seconds from here.
An engine starts from costs that were timed once for a model, its drafters and a machine, and kept;
the steps themselves go on refining them, and the pace of the day is taken from a single row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict, NonNegativeFloat

from paceline.drafters.base import Drafter, Rehearsing, longest_proposed
from paceline.engine.kept import Kept
from paceline.engine.machine import cpu_name, usable_cores
from paceline.engine.step_cost import BUDGET, FAR, REPEATS, StepCost, Stopwatch, timed
from paceline.models.batch import BLOCK_SIZE
from paceline.version import __version__

log = logging.getLogger(__name__)

KEPT = 0.98  # what a timing leaves of those before it: costs follow the contexts and the machine
OUTLIER = 3.0  # a timing this many times above what is known was held up by others
TRUSTED = 4.0  # timings after which one that stands out is taken for such
FORMAT = 5
STALE = 3.0  # so many times slower than a table says, and it is that of another machine
FASTER = 1.5  # so many times faster, and others kept the machine busy while the table was made
BESIDE = 0.05  # share of a step's news that goes into what a draft costs beside itself
UNSEEN = 0.998  # what a step without a draft leaves of that: a price that nobody pays is forgotten
TOGETHER = 8  # requests that a drafter's rehearsal drafts for, beside a single one


@dataclass(slots=True)
class Line:
    """Seconds = base + slope x amount, fitted to decayed timings; both never below zero.

    Where all timings had one amount nothing tells the two apart: the line then goes through zero.
    """

    count: NonNegativeFloat = 0.0
    amounts: NonNegativeFloat = 0.0
    squares: NonNegativeFloat = 0.0
    seconds: NonNegativeFloat = 0.0
    products: NonNegativeFloat = 0.0

    def add(self, amount: float, seconds: float) -> None:
        if self.count >= TRUSTED:
            seconds = min(seconds, OUTLIER * self(amount))
        self.count = KEPT * self.count + 1.0
        self.amounts = KEPT * self.amounts + amount
        self.squares = KEPT * self.squares + amount * amount
        self.seconds = KEPT * self.seconds + seconds
        self.products = KEPT * self.products + amount * seconds

    def fitted(self) -> tuple[float, float]:
        """base, slope"""
        if self.amounts <= 0:
            return 0.0, 0.0
        spread = self.squares - self.amounts**2 / self.count
        if spread <= 1e-3 * self.squares:
            return 0.0, self.seconds / self.amounts
        slope = (self.products - self.amounts * self.seconds / self.count) / spread
        if slope <= 0:
            return self.seconds / self.count, 0.0
        base = (self.seconds - slope * self.amounts) / self.count
        return (base, slope) if base >= 0 else (0.0, self.products / self.squares)

    def rescale(self, pace: float) -> None:
        """Make the base `pace` times as long: it is what weights take to read. Where nothing tells
        the base from the slope, all of it."""
        base, _ = self.fitted()
        if not base:
            self.seconds, self.products = pace * self.seconds, pace * self.products
            return
        self.seconds += (pace - 1) * base * self.count
        self.products += (pace - 1) * base * self.amounts

    def __call__(self, amount: float) -> float:
        base, slope = self.fitted()
        return base + slope * amount


@dataclass(eq=False)
class DraftCost:
    """Seconds of one drafter. A pass is taken by its rows; where one pass drafts all tokens
    (`parallel`), every request brings its draft and the anchor, else one row to each pass.

    `beside` is what a step takes longer when it drafts than its rows and the draft itself explain:
    the target finds less of its weights in the cache.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    parallel: bool = False
    proposing: Line = field(default_factory=Line)  # seconds of a pass by its rows
    observing: Line = field(default_factory=Line)  # seconds by committed rows
    beside: NonNegativeFloat = 0.0

    def draft_seconds(self, lengths: Sequence[int]) -> float:
        """To draft up to so many tokens for each request."""
        if not lengths:
            return 0.0
        if self.parallel:
            return self.beside + self.proposing(sum(lengths) + len(lengths))
        return self.beside + max(lengths) * self.proposing(len(lengths))

    def observe_seconds(self, rows: float) -> float:
        """To take in so many committed rows."""
        return self.observing(rows)

    @property
    def marginal_row(self) -> float:
        """Seconds that one more committed row adds."""
        return self.observing.fitted()[1]

    @property
    def marginal_slot(self) -> float:
        """Seconds that one more token to draft adds."""
        return self.proposing.fitted()[1]

    @property
    def marginal_request(self) -> float:
        """Seconds that one more request adds, beside its slots: its anchor, and the row it is
        going to commit in any case."""
        return self.marginal_row + (self.marginal_slot if self.parallel else 0.0)

    def add_proposal(self, lengths: Sequence[int], longest: int, seconds: float) -> None:
        """Drafting up to `lengths` tokens took `seconds`; the longest draft has `longest`."""
        if self.parallel:
            self.proposing.add(sum(lengths) + len(lengths), seconds)
        elif longest:
            self.proposing.add(len(lengths), seconds / longest)

    def add_observation(self, rows: int, seconds: float) -> None:
        self.observing.add(rows, seconds)

    def add_step(self, seconds: float, expected: float) -> None:
        """A step that drafted took `seconds` without the draft; its rows say `expected`."""
        more = min(seconds - expected, expected)  # a step that was held up says little
        self.beside = max(0.0, self.beside + BESIDE * (more - self.beside))

    def skip_step(self) -> None:
        """A step did not draft."""
        self.beside *= UNSEEN

    def rehearse(self, draft: Callable[[int, int], object], requests: int, length: int) -> None:
        """Time `draft(count, length)` for one request and for several: the minimum of a few."""
        draft(requests, length)
        points = [(count, length) for count in sorted({1, requests})]
        for (count, _), seconds in Stopwatch(draft).best_of(points).items():
            self.add_proposal([length] * count, length, seconds)

    def rescale(self, pace: float) -> None:
        self.proposing.rescale(pace)
        self.observing.rescale(pace)
        self.beside *= pace


@dataclass(slots=True)
class Costs:
    """The target's step and every drafter's share, learned from the steps as they run."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    step: StepCost
    drafters: dict[str, DraftCost] = field(default_factory=dict)

    def of(self, drafter: str | None) -> DraftCost:
        return self.drafters.setdefault(drafter or "", DraftCost())

    def rounds(self, drafter: str, longest: int) -> list[float]:
        """Return the time of one request's round that drafts 1 to `longest` tokens, in steps
        without drafts. The drafter takes in half of the draft, and the token behind it."""
        price, plain, rounds = self.of(drafter), self.step(1), []
        for count in range(1, longest + 1):
            taking_in = price.observe_seconds(1 + count / 2)
            seconds = self.step(1 + count) + price.draft_seconds([count]) + taking_in
            rounds.append(seconds / plain)
        return rounds

    def rescale(self, pace: float) -> None:
        self.step.rescale(pace)
        for cost in self.drafters.values():
            cost.rescale(pace)


def newcomer_cost(drafter: Drafter, others: Mapping[str, Drafter], costs: Costs) -> DraftCost:
    """Return what a drafter costs that nobody has timed: as much as one of the same shape among
    `others`, or nothing, until its first drafts tell."""
    shape = _shape(drafter)
    alike = next((name for name, other in others.items() if _shape(other) == shape), None)
    if alike is None:
        return DraftCost(drafter.parallel)
    return deepcopy(costs.of(alike))


def _shape(drafter: Drafter) -> tuple[object, ...]:
    """Return what the seconds of a draft depend on, whatever the weights hold."""
    sizes = drafter.weight_bytes, drafter.kv, len(drafter.feature_layers)
    return type(drafter), drafter.parallel, longest_proposed(drafter), *sizes


@dataclass(frozen=True, slots=True)
class CostSource:
    """The steps to time at start-up, and the facts that the timings depend on.

    `forward(rows, requests, start)` computes a step over blocks that nobody owns yet: at most
    `rows` rows and `requests` requests, after `start` tokens, 0 by default, and up to `context` in
    all. `clear(tokens)` first writes zeros to the KV of so many. `identity` names everything that a
    cached table must agree in; None where the model has no identity, and nothing is cached.
    """

    forward: Callable[..., object]
    rows: int
    requests: int
    drafters: Mapping[str, Drafter]
    context: int = 0
    clear: Callable[[int], object] | None = None
    identity: Mapping[str, object] | None = None

    @property
    def key(self) -> dict[str, object]:
        """Plain JSON: the identity, this program and this machine."""
        drafters = {name: [d.version, d.parallel] for name, d in self.drafters.items()}
        machine = {"cpu": cpu_name(), "cores": usable_cores()}
        own = {"format": FORMAT, "paceline": __version__, "rows": self.rows, "drafters": drafters}
        most = {"requests": self.requests, "context": min(self.context, FAR + self.rows)}
        return {**(self.identity or {}), **own, **machine, **most}


def starting_costs(source: CostSource) -> Costs:
    """The costs from the cache, at today's pace, or measured and kept for the next time."""
    if source.identity is None:
        return _measure(source)
    kept = Kept("costs", source.key, Costs)
    costs = kept.read()
    whole = costs is not None and costs.drafters.keys() == source.drafters.keys()
    if costs is None or not whole or not _follows_pace(costs, source, kept.path):
        costs = kept.write(_measure(source))
    return costs


def _measure(source: CostSource) -> Costs:
    log.info("timing steps, for about %.0f s: once for this model on this machine", BUDGET)
    started = time.perf_counter()
    if source.clear is not None:
        source.clear(min(source.context, FAR + source.rows))
    step = StepCost.measure(
        source.forward,
        source.rows,
        source.requests,
        context=source.context,
        budget=BUDGET,
    )
    costs = Costs(step, {name: DraftCost(d.parallel) for name, d in source.drafters.items()})
    for name, drafter in source.drafters.items():
        if isinstance(drafter, Rehearsing):
            length = longest_proposed(drafter)
            blocks = -(-(length + 1) // BLOCK_SIZE)
            many = max(1, min(TOGETHER, source.requests, source.rows // (blocks * BLOCK_SIZE)))
            log.info("timing drafts of %s", name)
            costs.of(name).rehearse(drafter.rehearse, many, length)
    log.info("timing took %.1f s; the steps themselves refine it", time.perf_counter() - started)
    return costs


def _follows_pace(costs: Costs, source: CostSource, path: Path) -> bool:
    """Rescale the costs to today's pace; False where they are too far off to be believed.

    A slower pace may be that of a busy moment, in which measuring again would bring worse costs."""
    now = min(timed(source.forward, 1, 1) for _ in range(1 + REPEATS))
    pace = now / costs.step(1)
    if not 1 / FASTER < pace < STALE:
        log.warning("cost table %s is off by a factor of %.1f: measuring again", path, pace)
        return False
    costs.rescale(pace)
    return True
