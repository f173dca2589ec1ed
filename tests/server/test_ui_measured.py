"""Measured points, read off what the commands write."""

from __future__ import annotations

import pytest

from paceline.core import InvalidRequest
from paceline.server.ui_measured import measured
from paceline.server.ui_timing import timing
from tests.evaluate.made import made_up, row


def test_an_evaluation_has_a_point_for_each_request_and_policy() -> None:
    evaluation = made_up({"mine": [row([3, 1, 4, 0], name="fox"), row([2, 2], seconds=0.8)]})
    points = measured(evaluation)["points"]
    assert len(points) == 4
    fox = next(point for point in points if "fox, whole block" in point["note"])
    assert fox["speedup"] == pytest.approx(2)  # a second without drafts, half of it with
    assert fox["acceptance_length"] == pytest.approx(3)  # (4 + 2 + 5 + 1) ÷ 4, incl. bonus
    assert fox["draft_length"] is None and "T = 0" in fox["note"]


def test_a_round_that_no_drafter_makes_is_refused_before_it_is_counted() -> None:
    """Counts of 10**18 tokens would fill the memory."""
    evaluation = made_up({"mine": [row([3, 1])]})
    evaluation["results"][0]["rows"][0]["rounds"]["drafter/full"][0][2] = 10**18
    with pytest.raises(InvalidRequest, match="1000000000000000000 of 4 drafted tokens accepted"):
        measured(evaluation)


def test_a_mock_has_a_point_for_each_cell() -> None:
    cell = {"batch": 4, "draft_length": 7, "acceptance_length": 3.5, "measured": {"speedup": 1.9}}
    (point,) = measured({"format": "paceline-mock/1", "model": "tiny", "cells": [cell]})["points"]
    assert (point["batch"], point["draft_length"], point["speedup"]) == (4, 7, 1.9)
    assert "mocked tiny" in point["note"]


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({}, "measured.format"),
        ({"format": ["paceline-mock/1"]}, "measured.format"),
        ({"points": [{"acceptance_length": 2}]}, "measured.points[0].speedup"),
        ({"points": [{"acceptance_length": 2, "speedup": True}]}, "measured.points[0].speedup"),
        ({"points": [{"acceptance_length": 2, "speedup": 1, "al": 2}]}, "measured.points[0].al"),
        ({"points": [{"al": 2}]}, "measured.points[0].al"),
        ({"points": [{"acceptance_length": 0.5, "speedup": 1}]},
         "measured.points[0].acceptance_length"),
        ({"points": [{"acceptance_length": 2, "speedup": 1, "batch": 0}]},
         "measured.points[0].batch"),
        ({"points": 3}, "measured"),
        ({"points": [3]}, "measured.points[0]"),
        ({"points": [{"acceptance_length": 2, "speedup": 1, "note": 4}]},
         "measured.points[0].note"),
        ({"format": "paceline-evaluation/1", "settings": {}}, "measured"),
        ({"format": "paceline-evaluation/1", "settings": {"tokens": 8},
          "results": [{"set": "a", "temperature": "hot", "rows": [{"prompt": "p"}]}]},
         "measured.results[0].temperature"),
    ],
)  # fmt: skip
def test_what_is_no_measurement_is_refused(stated: dict, field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        measured(stated)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"temperature": "hot"}, "evaluation.results[0].temperature"),
        ({"temperature": None}, "evaluation.results[0].temperature"),
        ({"rows": [{"prompt": "p"}]}, "evaluation"),
        ({"rows": 3}, "evaluation"),
    ],
)
def test_an_evaluation_that_somebody_changed_is_not_played(change: dict, field: str) -> None:
    evaluation = made_up({"mine": [row([3, 1])]})
    evaluation["results"][0].update(change)
    with pytest.raises(InvalidRequest) as error:
        timing({"evaluation": evaluation})
    assert error.value.field == field


def test_rounds_that_are_none_are_not_played() -> None:
    evaluation = made_up({"mine": [row([3, 1])]})
    played = evaluation["results"][0]["rows"][0]
    for side in played["rounds"]:
        played["rounds"][side] = [[1, 2]]
    with pytest.raises(InvalidRequest, match="evaluation: got"):
        timing({"evaluation": evaluation})


def test_an_evaluation_is_played_row_by_row() -> None:
    evaluation = made_up({"mine": [row([3, 1, 4, 0], name="fox"), row([2, 2], name="dog")]})
    answer = timing({"evaluation": evaluation, "row": 1})
    assert answer["rows"] == ["mine, T = 0: fox", "mine, T = 0: dog"]
    assert sum(event["tokens"] for event in answer["speculative"]) == len(answer["ar"])
    assert answer["acceptance_length"] == pytest.approx(3)
    assert answer["ar"][-1]["t_ms"] == pytest.approx(1000)
    with pytest.raises(InvalidRequest, match="row: got 2"):
        timing({"evaluation": evaluation, "row": 2})
