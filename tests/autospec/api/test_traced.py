"""Traces become sums by hour of each cohort and drafter, read once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paceline.autospec.api.traced import MOST_ROWS, TracedSums, TracedTraffic, row_label
from paceline.autospec.drift.cells import HOUR
from paceline.autospec.sums import N, R, T, ratio_of
from paceline.core import InvalidRequest
from paceline.core.cohorts import Cohort
from tests.autospec.loop.worlds import CHAT, SHOP, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.now = world.now // HOUR * HOUR + 600
    yield world
    world.close()


def totals(hours: TracedSums) -> dict[str, float]:
    """Return the requests of each cohort and drafter."""
    counts = hours.al.sums[N].sum(1)
    return dict(zip(hours.al.cohorts, counts.tolist(), strict=True))


def test_reading_on_gives_what_reading_at_once_gives(world: World) -> None:
    traces = world.folder / "traces"
    seen = TracedTraffic()
    for hour in range(30):
        later = world.now + hour * HOUR
        world.write([world.request(SHOP, later - s, 3.0, "base") for s in (1, 500, 900, 2000)])
        seen = seen.read_on(traces, later)
    at_once = TracedTraffic().read_on(traces, later)
    assert totals(seen.whole) == totals(at_once.whole) == {row_label(SHOP, "base"): 120}
    assert np.allclose(seen.whole.al.sums.sum(2), at_once.whole.al.sums.sum(2))
    assert at_once.over.until == int(later // HOUR), "the present hour is not over"
    assert sum(totals(seen.over).values()) < 120


def test_requests_that_say_nothing_of_the_chosen_drafter_are_left_out(world: World) -> None:
    at = world.now - 2 * HOUR
    kept = [world.request(CHAT, at, 3.0, "base"), world.request(CHAT, at, 3.0, "next")]
    left_out = [
        world.request(CHAT, at, 3.0, "base", route="named"),
        world.request(CHAT, at, 3.0, "base", held_back=True),
        world.request(CHAT, at, 3.0, "base", spec_off=True),
    ]
    world.write([*kept, *left_out])
    seen = TracedTraffic().read_on(world.folder / "traces", world.now).whole
    assert totals(seen) == {row_label(CHAT, "base"): 1, row_label(CHAT, "next"): 1}
    assert seen.by_cohort({"next"}).sums[N].sum() == 1
    cells = seen.by_cohort()
    accepted = sum(request.accepted for request in kept)
    assert ratio_of(cells.sums.sum((1, 2))) == 1 + accepted / 40


def test_the_speed_is_a_ratio_of_seconds(world: World) -> None:
    timed = [(2.0, 5.0), (1.0, 1.0), (0.0, 0.0)]  # the last was not timed
    at = world.now - HOUR
    world.write(
        [
            world.request(SHOP, at, 3.0, "base", seconds=took, ar_seconds=plain)
            for took, plain in timed
        ]
    )
    seen = TracedTraffic().read_on(world.folder / "traces", world.now).whole
    sums = seen.speed.sums.sum((1, 2))
    assert sums[T] / sums[R] == 2.0


def test_a_folder_without_traces_yet_has_no_requests(tmp_path: Path) -> None:
    assert TracedTraffic().read_on(tmp_path / "none", 1e9).whole.al.cohorts == ()


def test_a_damaged_file_is_named(world: World) -> None:
    world.write([world.request(SHOP, world.now - 60, 3.0, "base")])
    path = max((world.folder / "traces").glob("requests/*/*/*.parquet"))
    path.write_bytes(b"no parquet")
    with pytest.raises(InvalidRequest, match=path.name):
        TracedTraffic().read_on(world.folder / "traces", world.now)


def test_what_is_kept_is_bounded(world: World) -> None:
    at = world.now - 60
    cohorts = [Cohort("tiny", f"app-{number}").label for number in range(MOST_ROWS + 30)]
    requests = [world.request(cohort, at, 3.0, "base") for cohort in cohorts]
    requests += [world.request(cohorts[-1], at, 3.0, "base")]
    seen = TracedSums()
    world.write(requests)
    seen = seen.with_cells(world.folder / "traces", int(world.now // HOUR) + 1, world.now)
    assert len(seen.al.cohorts) == MOST_ROWS
    assert totals(seen)[row_label(cohorts[-1], "base")] == 2, "the largest stay"


def test_by_the_minute_the_last_hours_are_read(world: World) -> None:
    ages = (30, 90, 91, 3600, 3 * 3600 + 120)
    world.write([world.request(SHOP, world.now - age, 3.0, "base") for age in ages])
    seen = TracedTraffic.by_minute()
    for step in range(3):
        seen = seen.read_on(world.folder / "traces", world.now + 60 * step)
    cells = seen.whole.by_cohort()
    minutes = {cells.start + int(n) for n in cells.sums[N].sum(0).nonzero()[0]}
    assert minutes == {int((world.now - age) // 60) for age in ages[:4]}
    assert cells.sums[N].sum() == 4, "the fifth is too old"
