"""Costs are timed once and kept; what cannot be believed is timed again."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.costs import Costs, CostSource, DraftCost, Line, starting_costs
from paceline.engine.step_cost import FAR, StepCost

PAIR = 1e-4  # seconds
KEY = 1e-3


class Clock:
    """Steps take what they are said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pace, self.held_up, self.calls = 1.0, 0.0, 0  # held_up: seconds, whatever the step
        monkeypatch.setattr("paceline.engine.step_cost.timed", self.timed)
        monkeypatch.setattr("paceline.engine.costs.timed", self.timed)

    def timed(self, work: Any, *arguments: int) -> float:
        self.calls += 1
        return self.pace * work(*arguments) + self.held_up


class Drafter:
    name, version, max_draft_len, parallel = "d", "1", 7, True

    def rehearse(self, requests: int, length: int) -> float:
        return 0.1 + 0.01 * requests * (length + 1)


def step_seconds(rows: int, requests: int, start: int = 0) -> float:
    pairs = (rows - 1) * (start + rows / 2) if start else 0
    return 1.0 + rows / 16 + 0.02 * (requests - 1) + KEY * start + PAIR * pairs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Clock]:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr("paceline.engine.costs.BUDGET", math.inf)
    return Clock(monkeypatch)


def source(**changes: Any) -> CostSource:
    identity = {"model": "m", "dtype": "bfloat16"}
    options = {"forward": step_seconds, "rows": 512, "requests": 64, "identity": identity}
    return CostSource(**{**options, "drafters": {"d": Drafter()}, **changes})


def table(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "costs").iterdir()
    return file


def check(costs: Costs, pace: float = 1.0) -> None:
    for rows, requests in ((1, 1), (16, 1), (32, 32), (48, 8)):
        assert costs.step(rows, requests) == pytest.approx(pace * step_seconds(rows, requests))
    assert costs.of("d").draft_seconds([7] * 4) == pytest.approx(pace * Drafter().rehearse(4, 7))


def test_what_was_measured_is_found_again_at_todays_pace(clock: Clock, tmp_path: Path) -> None:
    check(starting_costs(source()))
    measured, clock.calls, clock.pace = clock.calls, 0, 1.5
    costs = starting_costs(source())
    assert costs.step(1) == pytest.approx(1.5 * step_seconds(1, 1))
    for count in (1, 8):  # what its weights take to read is 0.1
        seconds = costs.of("d").draft_seconds([7] * count)
        assert seconds == pytest.approx(0.05 + Drafter().rehearse(count, 7))
    assert costs.step(48) == pytest.approx(step_seconds(48, 1), rel=0.05), "memory is slow"
    assert clock.calls < 6 < measured
    assert json.loads(table(tmp_path).read_text())["key"]["model"] == "m"


def test_what_prompts_look_back_on_is_measured_where_there_is_context(
    clock: Clock, tmp_path: Path
) -> None:
    step = starting_costs(source()).step
    assert step.per_key == step.per_pair == 0
    for _ in ("measured", "kept"):
        step = starting_costs(source(context=4096)).step
        assert step.per_key == pytest.approx(KEY) and step.per_pair == pytest.approx(PAIR)


def test_keys_are_written_before_it_is_timed_how_long_they_take_to_read(clock: Clock) -> None:
    done: list[tuple[int, ...]] = []

    def forward(*size: int) -> float:
        done.append(size)
        return step_seconds(*size)

    def clear(tokens: int) -> None:
        done.append((tokens,))

    starting_costs(source(context=4096, forward=forward, clear=clear))
    starts = [size[2] for size in done if len(size) == 3]
    assert done[0] == (FAR + 512,) and set(starts) == {FAR}


def test_steps_of_a_large_model_are_timed_once_and_held_up_ones_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting_costs(source(identity=None))
    slow, clock.calls, clock.pace = clock.calls, 0, 0.001
    starting_costs(source(identity=None))
    assert 2 * slow < clock.calls <= 3 * slow
    clock.pace, held_up = 1.0, {2, 8, 33}

    def forward(rows: int, requests: int, start: int = 0) -> float:
        more = 5.0 if rows in held_up and requests == 1 else 0.0
        held_up.discard(rows)
        return step_seconds(rows, requests, start) + more

    check(starting_costs(source(identity=None, forward=forward)))
    assert not held_up


def test_a_large_model_is_timed_at_few_sizes_and_the_rest_lies_between(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with plain torch, without a compiler: a start waits for few steps; serving refines."""
    monkeypatch.setattr("paceline.engine.costs.BUDGET", 9.0)
    with caplog.at_level(logging.INFO):
        step = starting_costs(source(identity=None, context=4096)).step
    assert clock.calls <= 10 and len(step.rows) == 13  # five of steps, four of drafts
    for rows in step.rows:
        assert step(rows) == pytest.approx(step_seconds(rows, 1))
    assert step.per_pair == pytest.approx(PAIR)
    assert "timing steps, for about" in caplog.text and "timing took" in caplog.text


def test_another_model_drafter_or_size_has_a_table_of_its_own(clock: Clock, tmp_path: Path) -> None:
    other = Drafter()
    other.version = "2"
    starting_costs(source())
    for changes in ({"identity": {"model": "n"}}, {"drafters": {"d": other}}, {"rows": 8}):
        starting_costs(source(**changes))
    assert len(list((tmp_path / "costs").iterdir())) == 4


def test_a_model_without_identity_leaves_nothing_behind(clock: Clock, tmp_path: Path) -> None:
    check(starting_costs(source(identity=None)))
    assert not (tmp_path / "costs").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"m"', '"n"'),
        lambda text: text.replace('"per_request"', '"each"'),
        lambda text: json.dumps(json.loads(text) | {"step": {"rows": [1], "seconds": ["x"]}}),
        lambda text: json.dumps(json.loads(text) | {"drafters": {"d": {"pass": {}, "row": {}}}}),
    ],
)
def test_a_damaged_table_is_measured_again_and_mended(
    clock: Clock, tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    starting_costs(source())
    file = table(tmp_path)
    file.write_text(damage(file.read_text()))
    with caplog.at_level(logging.WARNING):
        check(starting_costs(source()))
    assert "measuring again" in caplog.text
    caplog.clear()
    check(starting_costs(source()))
    assert not caplog.text


def test_a_table_that_is_far_off_is_stale(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    starting_costs(source())
    clock.pace = 10.0
    check(starting_costs(source()), pace=10.0)
    assert "off by a factor of 10" in caplog.text


def test_a_table_made_on_a_busy_machine_is_made_again_on_an_idle_one(clock: Clock) -> None:
    clock.held_up = 1.5
    starting_costs(source())
    clock.held_up = 0.0
    check(starting_costs(source()))


def test_a_table_is_kept_where_the_machine_is_busy_now(clock: Clock, tmp_path: Path) -> None:
    starting_costs(source())
    kept, clock.held_up = table(tmp_path).read_text(), 1.5
    step = starting_costs(source()).step
    assert step(1) == pytest.approx(step_seconds(1, 1) + 1.5)
    assert step(48) == pytest.approx(step_seconds(48, 1), rel=0.2)
    assert table(tmp_path).read_text() == kept


def test_a_folder_that_cannot_be_written_is_no_failure(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs").write_text("in the way")
    check(starting_costs(source()))
    assert "cannot be kept" in caplog.text


def test_a_line_is_learned_from_noise_and_one_hiccup_does_not_bend_it() -> None:
    line = Line()
    for turn in range(200):
        amount = 8.0 * (1 + turn % 4)
        line.add(amount, (0.5 + 0.01 * amount) * (1.1 if turn % 2 else 0.9))
    line.add(8.0, 100.0)
    assert line(24.0) == pytest.approx(0.74, rel=0.1)


def test_passes_of_a_drafter_that_drafts_token_by_token() -> None:
    cost = DraftCost(parallel=False)
    for requests in (1, 4):
        cost.add_proposal([5] * requests, 3, 3 * (0.2 + 0.1 * requests))
    assert cost.draft_seconds([4, 2]) == pytest.approx(4 * (0.2 + 0.1 * 2))


def test_what_a_draft_costs_beside_itself_is_learned_from_the_steps() -> None:
    cost = DraftCost(parallel=True)
    cost.add_proposal([3], 3, 0.2)
    for _ in range(120):
        cost.add_step(1.15, expected=1.0)
    assert cost.draft_seconds([3]) == pytest.approx(0.35, rel=0.01)
    assert cost.draft_seconds([]) == 0
    cost.add_step(100.0, expected=1.0)
    assert cost.beside < 0.25, "a step that was held up counts too much"
    before = cost.beside
    for _ in range(1000):
        cost.skip_step()
    assert cost.beside < 0.2 * before, "a price that nobody pays any more is not forgotten"
    for _ in range(60):
        cost.add_step(0.9, expected=1.0)
    assert cost.beside == 0


def test_drafts_that_slow_a_step_down_do_not_make_plain_steps_look_slow() -> None:
    """Every second step drafts, and takes a fifth longer than its rows explain."""
    step, cost = StepCost([1, 8], [1.0, 2.0]), DraftCost(parallel=True)
    plain = []
    for _ in range(200):
        plain.append(step(1))
        step.observe(1, 1.0)
        beside = cost.beside
        cost.add_step(1.2, step(1))
        step.observe(1, 1.2 - beside)
    assert plain[-1] == pytest.approx(1.0, abs=0.01)
    assert cost.beside == pytest.approx(0.2, abs=0.02)


def test_requests_cost_something_beside_their_rows() -> None:
    cost = StepCost([1, 32], [1.0, 2.0], per_request=0.1)
    assert cost(32, 5) == pytest.approx(2.4)
    assert cost.upwards(32, 31, 5) == pytest.approx([cost(32 + more, 5) for more in range(32)])
    for _ in range(100):
        cost.observe(32, 4.8, 5)
    assert cost(32, 5) == pytest.approx(4.8, rel=0.01)


def test_costs_are_read_while_the_engine_observes_a_step() -> None:
    """The page reads them in a thread of its own: a step is observed before each line of the
    reader."""
    cost = StepCost([1, 8], [1.0, 2.0])

    def observing(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is StepCost.seconds.fget.__code__ and event == "line":  # type: ignore[attr-defined]
            cost.observe(1, 1.5)
        return observing

    before = sys.gettrace()
    sys.settrace(observing)
    try:
        first, last = cost.seconds
        assert 1.0 <= first < last
    finally:
        sys.settrace(before)
