"""Spans in their places: what is added up under which name, and what is left over."""

from __future__ import annotations

from paceline.core.spans import TOP, Span
from paceline.profiling.gaps import Bandwidth, Roof, largest_gap, rows_of
from paceline.profiling.tree import Steps, gather, placed
from tests.profiling.recorded import step


def two_forwards() -> list[Span]:
    """A step with two spans of one name in different places."""
    made: list[Span] = []
    step(made, 0, {"draft": 400}, {"head": 300, "norm": 100}, rest=50)
    draft = next(index for index, span in enumerate(made) if span.name == "draft")
    made.append(Span("head", 10, 210, draft))
    made.append(Span("head", 220, 320, draft))
    return made


def test_spans_of_one_name_are_one_node_for_each_place() -> None:
    tree = gather(two_forwards()).tree
    drafted, verified = tree.children["draft"].children["head"], tree.children["forward"]
    assert (drafted.ns, drafted.spans) == (300, 2)
    assert (verified.children["head"].ns, verified.children["head"].spans) == (300, 1)


def test_a_rest_is_what_no_child_accounts_for() -> None:
    tree = gather(two_forwards()).tree
    assert tree.children["draft"].rest == 100
    assert tree.children["forward"].rest == 0
    assert tree.rest == 50


def test_paths_and_depths_name_each_line_once() -> None:
    rows = rows_of(gather(two_forwards()), {})
    paths = [row.path for row in rows]
    assert len(set(paths)) == len(paths)
    assert ("step", "draft", "head") in paths and ("step", "forward", "head") in paths
    assert [row.depth for row in rows if row.name == "head"] == [2, 2]
    assert rows[0].name == "step" and rows[0].depth == 0
    assert largest_gap(rows).leaf


def test_spans_outside_of_steps_are_in_no_tree() -> None:
    made = [Span("deliver", 0, 10, TOP), Span("inner", 1, 5, 0)]
    step(made, 100, {"draft": 7}, {"qkv": 3})
    steps = Steps()
    names = [span.name for span, _ in placed(made, steps)]
    assert names == ["step", "draft", "forward", "qkv"]
    assert steps.decode_steps == 1 and steps.durations == [10]


def test_no_step_at_all_is_an_empty_tree() -> None:
    steps = gather([])
    assert (steps.decode_steps, steps.prompt_steps, steps.tree.children) == (0, 0, {})


def test_a_roof_is_the_longer_of_reading_and_multiplying() -> None:
    bandwidth = Bandwidth(streamed=10**9, seconds=0.1, reads=4)
    roof = Roof(bandwidth, peak=1e12, itemsize=2)
    assert bandwidth.time(5 * 10**8) == 0.05
    assert roof.product(10**6, rows=1) == bandwidth.time(10**6)
    assert roof.product(10**6, rows=10_000) == 2 * 10_000 * 10**6 / 2 / 1e12
    assert Roof(bandwidth, None, 2).product(10**6, rows=10_000) == bandwidth.time(10**6)
