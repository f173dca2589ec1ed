"""A known cost table and drafts of known acceptance: how near the best speed a policy comes.

No engine and no clock: a step's seconds are looked up and its tokens are drawn, or for the score
their expectation is taken. The optimum knows every request's acceptance; a policy sees rounds only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count
from operator import mul

import pytest

from paceline.core import Request, SamplingParams
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.draft import Draft, shortened
from paceline.engine.lengths import LengthController, ThroughputLengths
from paceline.engine.scheduler import Scheduled
from paceline.engine.step_cost import StepCost

MOST = 7
# As measured for SmolLM2-135M and a small DFlash drafter on two cores, in plain steps.
ROWS = [1, 2, 4, 8, 16, 32, 64], [1.0, 1.0, 1.0, 1.06, 1.1, 1.8, 3.5]
PASS, PASS_ROW = 0.09, 0.004  # a draft, and each of its rows
SEEN, SEEN_ROW, MANY = 0.035, 0.001, 64  # to observe, and each row; so many rows do not wait
RIGHT, WRONG = 7, 8
Rates = Callable[[int], float]  # acceptance of a position, by round
_ids = count()


@dataclass
class Stream:
    """A request whose draft positions stand with a known rate; `rounds` long, then another."""

    rate: Rates
    rounds: int
    cohort: str = ""
    request: Request = field(init=False)
    round: int = 0
    waiting: int = 0  # rows to be observed

    def __post_init__(self) -> None:
        params, name = SamplingParams(temperature=0.0), f"s{next(_ids)}"
        self.request = Request(
            id=name, prompt_ids=[1], params=params, drafter="d", cohort=self.cohort
        )

    def survivals(self) -> list[float]:
        return list(accumulate([self.rate(self.round)] * MOST, mul))


class World:
    """Steps of streams under a policy, timed beside the optimum's for the same tokens."""

    def __init__(self, make: Callable[[Costs], LengthController], streams: list[Stream]) -> None:
        self.true, self.costs = StepCost(*ROWS), Costs(StepCost(*ROWS), {"d": DraftCost(True)})
        self.policy, self.streams = make(self.costs), streams
        for requests in (1, 8):
            lengths = [MOST] * requests
            self.costs.of("d").add_proposal(lengths, MOST, self.draft_seconds(lengths))
        self.rng = random.Random(1)
        self.seconds = self.best_seconds = 0.0
        self.known_best: dict[tuple[float, ...], float] = {}

    @staticmethod
    def draft_seconds(lengths: list[int]) -> float:
        """One pass, over an anchor and the slots of every request that is asked."""
        rows = sum(length + 1 for length in lengths if length)
        return PASS + PASS_ROW * rows if rows else 0.0

    def step(self, scored: bool) -> None:
        streams, n = self.streams, len(self.streams)
        entries = [Scheduled(s.request, 0, 1, MOST) for s in streams]
        bounds = self.policy.draft_lengths(entries, rows=n, decoding=n, longest=MOST)
        asked = [bound.length for bound in bounds]
        stand = [self.draw(s) for s in streams]
        drafted = [i for i in range(n) if asked[i]]
        for i in drafted:
            wrong = [WRONG] * (asked[i] - stand[i])
            tokens = [RIGHT] * min(stand[i], asked[i]) + wrong
            entries[i].draft = Draft(proposed=tokens, tokens=tokens, length=len(tokens))
        kept = self.policy.verify_lengths([entries[i] for i in drafted], rows=n, decoding=n)
        for i, length in zip(drafted, kept, strict=True):
            entries[i].draft = shortened(entries[i].draft, length)
        gained, seconds = 0.0, self.draft_seconds(asked)
        if drafted:
            self.costs.of("d").add_proposal([asked[i] for i in drafted], MOST, seconds)
        seconds += self.observe([streams[i] for i in drafted])
        for stream, entry, right in zip(streams, entries, stand, strict=True):
            length = len(entry.draft)
            gained += 1 + sum(stream.survivals()[:length])
            committed = [RIGHT] * min(right, length)
            committed.append(RIGHT if right > length else WRONG + 1)
            stream.waiting += len(committed) * self.policy.sees(stream.request)
            self.policy.observe(entry, committed)
        due = [s for i, s in enumerate(streams) if asked[i] or s.waiting >= MANY]
        seconds += self.observe(due)
        seconds += self.true(n + sum(len(entry.draft) for entry in entries), n)
        if scored:
            self.seconds += seconds
            rates = tuple(sorted(stream.rate(stream.round) for stream in streams))
            if rates not in self.known_best:
                self.known_best[rates] = self.best_speed()
            self.best_seconds += gained / self.known_best[rates]
        self.streams = [self.next(stream) for stream in streams]

    def observe(self, streams: list[Stream]) -> float:
        """The drafter sees all that waits of these."""
        rows = sum(stream.waiting for stream in streams)
        for stream in streams:
            stream.waiting = 0
        if not rows:
            return 0.0
        seconds = SEEN + SEEN_ROW * rows
        self.costs.of("d").add_observation(rows, seconds)
        return seconds

    def draw(self, stream: Stream) -> int:
        right, rate = 0, stream.rate(stream.round)
        while right < MOST and self.rng.random() < rate:
            right += 1
        return right

    def next(self, stream: Stream) -> Stream:
        stream.round += 1
        if stream.round < stream.rounds:
            return stream
        self.policy.forget(stream.request.id)
        return Stream(stream.rate, stream.rounds, stream.cohort)

    def best_speed(self) -> float:
        """Of the likeliest requests, however many of them, drafting tokens of their own lengths."""
        n = len(self.streams)
        rows = sorted((s.survivals() for s in self.streams), key=lambda row: -row[0])
        best = n / self.true(n, n)
        for asked in range(1, n + 1):
            order = sorted((s for row in rows[:asked] for s in row), reverse=True)
            tokens, seconds = float(n), PASS + SEEN + asked * (PASS_ROW + SEEN_ROW)
            for extra, survival in enumerate(order, 1):
                tokens, seconds = tokens + survival, seconds + PASS_ROW + SEEN_ROW * survival
                best = max(best, tokens / (seconds + self.true(n + extra, n)))
        return best

    def share(self, warm_up: int = 400, steps: int = 1500) -> float:
        """Of the optimum's speed, once the policy has settled."""
        for turn in range(warm_up + steps):
            self.step(scored=turn >= warm_up)
        return self.best_seconds / self.seconds


def always(rate: float) -> Rates:
    return lambda round_: rate


def changing(round_: int) -> float:
    return 0.9 if round_ // 500 % 2 == 0 else 0.75


def of(rate: float, number: int = 1, rounds: int = 10**9, cohort: str = "") -> Iterator[Stream]:
    return (Stream(always(rate), rounds, cohort) for _ in range(number))


SCENARIOS: dict[str, Callable[[], list[Stream]]] = {
    "good drafts": lambda: [*of(0.9)],
    "middling drafts": lambda: [*of(0.5)],
    "useless drafts": lambda: [*of(0.02)],
    "useless drafts, short requests": lambda: [*of(0.02, rounds=100)],
    "eight good": lambda: [*of(0.85, 8)],
    "eight useless": lambda: [*of(0.02, 8)],
    "mixed batch": lambda: [*of(0.9, 4), *of(0.02, 4)],
    "two cohorts, short requests": lambda: [*of(0.9, 4, 120, "a"), *of(0.3, 4, 120, "b")],
    "a crowd": lambda: [*of(0.8, 32)],
    "a useless crowd": lambda: [*of(0.02, 32, 200)],
    "changing acceptance": lambda: [Stream(changing, 10**9)],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_throughput_comes_near_the_known_optimum(scenario: str) -> None:
    assert World(ThroughputLengths, SCENARIOS[scenario]()).share() >= 0.98


def test_control_a_fixed_length_does_not() -> None:
    shares = {
        name: World(lambda _: LengthController(), make()).share(0, 300)
        for name, make in SCENARIOS.items()
    }
    assert shares["good drafts"] > 0.95
    assert min(shares.values()) < 0.5 and sum(share < 0.9 for share in shares.values()) > 5
