"""Levels of drafting by the clock: what does not pay is left, what pays is kept, and both soon."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from paceline.engine.lengths.levels import LONGEST, Level, Levels
from paceline.engine.step_cost import StepCost

STEP = 0.01  # seconds without drafts
COST = StepCost([1, 64], [STEP, STEP])
# By level: committed tokens of a request's round, and the step's time, as shares of the plain one.
LOSES = {Level.NONE: (1.0, 1.0), Level.LOOK_UPS: (1.02, 1.03), Level.ALL: (1.06, 1.14)}
LOOKS_UP = {Level.NONE: (1.0, 1.0), Level.LOOK_UPS: (1.10, 1.03), Level.ALL: (1.12, 1.14)}
PAYS = {Level.NONE: (1.0, 1.0), Level.LOOK_UPS: (1.1, 1.05), Level.ALL: (1.5, 1.2)}
PAYS_LITTLE = {Level.NONE: (1.0, 1.0), Level.LOOK_UPS: (1.0, 1.03), Level.ALL: (1.16, 1.1)}
Traffic = Mapping[Level, tuple[float, float]]


class World:
    """Steps of `decoding` requests whose tokens and times vary as real ones do."""

    def __init__(self, decoding: int = 8, looks_up: bool = True, noise: float = 0.03) -> None:
        self.levels, self.decoding, self.noise = Levels(COST, looks_up), decoding, noise
        self.rng = random.Random(1)
        self.taken: list[Level] = []

    def run(self, traffic: Traffic, steps: int, cohort: str = "chat") -> float:
        """Return the speed as a share of that of plain steps."""
        tokens = seconds = 0.0
        for _ in range(steps):
            level = self.levels.level(self.decoding, [cohort])
            self.taken.append(level)
            mean, time = traffic[level]
            committed = self.decoding
            for _ in range(self.decoding):
                committed += (self.rng.random() < (mean - 1) / 2) * 2
            took = STEP * time * self.rng.gauss(1.0, self.noise)
            self.levels.observe(self.decoding, committed, took)
            tokens, seconds = tokens + committed, seconds + took
        return tokens / self.decoding / (seconds / STEP)

    def share(self, level: Level, steps: int) -> float:
        return self.taken[-steps:].count(level) / steps


@pytest.mark.parametrize("decoding", [5, 8, 32])
def test_drafting_that_costs_more_than_it_brings_is_left(decoding):
    world = World(decoding)
    world.run(LOSES, 1500)
    assert world.run(LOSES, 4000) > 0.98
    assert world.share(Level.ALL, 4000) < 0.25


@pytest.mark.parametrize("decoding", [8, 32])
def test_the_asked_drafter_goes_where_look_ups_alone_are_faster(decoding):
    world = World(decoding)
    world.run(LOOKS_UP, 1500)
    assert world.run(LOOKS_UP, 4000) > 1.05  # look-ups alone: 1.068; all: 0.98
    assert world.share(Level.LOOK_UPS, 4000) > 0.7


@pytest.mark.parametrize("decoding", [1, 8, 32])
def test_drafting_that_clearly_pays_is_never_interrupted(decoding):
    world = World(decoding)
    world.run(PAYS, 3000)
    assert set(world.taken) == {Level.ALL}


@pytest.mark.parametrize("decoding", [1, 4])
def test_few_requests_draft_whatever_it_brought_so_far(decoding):
    """A text may begin to copy at any time, and what comes with a drafter costs little there."""
    world = World(decoding)
    world.run(LOSES, 1000)
    for _ in range(100):
        world.levels.observe_plain(decoding, STEP)
        world.levels.observe_mixed(decoding)
    world.run(LOSES, 1000, cohort="code")
    assert set(world.taken) == {Level.ALL}


def test_what_pays_a_little_is_compared_and_stays():
    world = World(32)
    assert world.run(PAYS_LITTLE, 4000) > 1.03  # all: 1.055
    assert world.share(Level.ALL, 2000) > 0.9


def test_a_drafter_without_look_ups_is_all_or_nothing():
    world = World(looks_up=False)
    assert world.run(LOSES, 3000) > 0.97
    assert set(world.taken) == {Level.NONE, Level.ALL}


def test_drafting_comes_back_when_the_traffic_begins_to_pay():
    world = World()
    world.run(LOSES, 4000)
    world.run(PAYS, 2 * LONGEST + 200)
    assert world.share(Level.ALL, 100) == 1


def test_new_traffic_is_tried_at_once():
    world = World()
    world.run(LOSES, 4000)
    world.run(PAYS, 100, cohort="code")
    assert world.share(Level.ALL, 100) == 1


def test_each_load_has_its_own_level():
    world = World(32)
    world.run(LOSES, 3000)
    assert world.levels.level(32, ["chat"]) < Level.ALL
    assert world.levels.level(8, ["chat"]) is Level.ALL


def test_loads_are_compared_as_if_they_were_full():
    """Fewer requests make a step faster. That is no merit of what is on trial meanwhile."""
    cost = StepCost([1, 2, 4, 8], [0.01, 0.012, 0.016, 0.024])
    levels = Levels(cost, looks_up=False)
    rng, taken = random.Random(2), []
    for _ in range(3000):
        level = levels.level(8, ["chat"])
        decoding = rng.choice([5, 6, 7, 8]) if level is Level.ALL else 5
        tokens, slower = (decoding + 1, 1.04) if level is Level.ALL else (decoding, 1.0)
        levels.observe(decoding, tokens, cost(decoding, decoding) * slower)
        taken.append(level)
    assert taken.count(Level.ALL) > 0.95 * len(taken)
    assert Level.NONE in taken, "never compared: the test shows nothing"


def test_a_trial_ends_beside_prompts_that_never_end():
    world = World()
    for _ in range(100):
        if world.levels.level(8, ["chat"]) is not Level.ALL:
            break
        world.run(PAYS_LITTLE, 1)
    assert world.levels.level(8, ["chat"]) is Level.NONE
    for _ in range(50):
        world.levels.observe_mixed(8)
    assert world.levels.level(8, ["chat"]) is Level.ALL, "a trial without evidence changes nothing"


def test_steps_without_a_drafter_tell_the_plain_speed():
    """Drafting that clearly pays against such steps is not compared."""
    world = World()
    for _ in range(32):
        world.levels.observe_plain(8, 2 * STEP)  # the cost table says STEP
    world.run(LOSES, 1000)
    assert set(world.taken) == {Level.ALL}
