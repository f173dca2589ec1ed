"""The recorder: nothing where nobody listens, every span in its place where somebody does."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from paceline.core.spans import OFF, ROOM, TOP, Recording


def test_off_takes_no_notice() -> None:
    asked = []
    with OFF("step"), OFF("draft"):
        OFF.parts(["qkv"], [1, 2])
        OFF.count(lambda: asked.append(1) or {})
    assert OFF.lane("another thread") is OFF
    assert asked == [], "what is counted must not be computed for nobody"


def test_off_looks_at_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_clock() -> int:
        raise AssertionError("a clock was read")

    monkeypatch.setattr(time, "monotonic_ns", no_clock)
    with OFF("step"):
        pass


def test_spans_know_their_parents_and_last_as_long_as_they_are_open() -> None:
    lane = Recording().lane("engine")
    with lane("step"):
        with lane("draft"):
            time.sleep(0.002)
        with lane("forward"):
            pass
        lane.count(lambda rows: {"rows": rows}, 3)
    step, draft, forward = lane.spans()
    assert [s.name for s in (step, draft, forward)] == ["step", "draft", "forward"]
    assert (step.parent, draft.parent, forward.parent) == (TOP, 0, 0)
    assert draft.duration >= 2_000_000
    assert step.start <= draft.start <= draft.end <= forward.start <= forward.end <= step.end
    assert step.counts == lane.latest == {"rows": 3} and draft.counts is None


def test_parts_lie_within_the_open_span() -> None:
    lane = Recording().lane("engine")
    with lane("forward"):
        lane.parts(["embed", "qkv"], [5, 7, 10])
    _, embed, qkv = lane.spans()
    assert (embed.start, embed.end, embed.parent) == (5, 7, 0)
    assert (qkv.start, qkv.end, qkv.parent) == (7, 10, 0)


def test_more_parts_than_a_lane_has_room_for() -> None:
    lane = Recording().lane("engine")
    names = [f"part {index}" for index in range(5 * ROOM)]
    with lane("forward"):
        lane.parts(names, range(len(names) + 1))
        with lane("after"):
            pass
    _, *parts, after = lane.spans()
    assert [part.name for part in parts] == names
    assert all((p.start, p.end, p.parent) == (i, i + 1, 0) for i, p in enumerate(parts))
    assert (after.name, after.parent) == ("after", 0)


def test_a_span_ends_with_an_exception() -> None:
    lane = Recording().lane("engine")
    with pytest.raises(KeyError), lane("step"), lane("draft"):
        raise KeyError
    assert all(span.end >= span.start > 0 for span in lane.spans())


def test_a_lane_grows() -> None:
    lane = Recording().lane("engine")
    for _ in range(ROOM + 10):
        with lane("step"):
            pass
    spans = lane.spans()
    assert len(spans) == ROOM + 10
    assert all(a.end <= b.start for a, b in pairwise(spans))
