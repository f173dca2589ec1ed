"""Speed against quality: what the table says of texts that are known."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.load.lossy import level
from paceline.bench.load.paired import Pair
from paceline.bench.prompts import BenchPrompt
from paceline.bench.report.charts import Labels, scatter


def pair(off: float, on: float) -> Pair:
    """Ten tokens, `off` and `on` seconds apart."""
    made = Pair(BenchPrompt("p", "chat", [{"role": "user", "content": "Hi"}]))
    for answers, step in ((made.off, off), (made.on, on)):
        arrivals = [step * i for i in range(10)]
        answers.append(MeasuredAnswer(0.0, list(range(10)), arrivals, drafted=DraftCounts(2, 8, 4)))
    return made


def said(token_ids: list[int], logprobs: list[float], **more: float) -> MeasuredAnswer:
    return MeasuredAnswer(0.0, token_ids, logprobs=logprobs, **more)  # type: ignore[arg-type]


def test_a_level_compares_with_the_lossless_text() -> None:
    lossless = [said([1, 2, 3, 4], [-1.0] * 4), said([5, 6], [-1.0] * 2)]
    changed = said([1, 2, 9, 4], [-1.0, -1.0, -3.0, -1.0], distance=0.3, replaced_tokens=1)
    texts = [changed, said([5, 6], [-1.0] * 2)]
    got = level(0.1, [pair(0.2, 0.1), pair(0.8, 0.1)], texts, lossless)
    assert got.speedup == pytest.approx(4.0)
    assert got.acceptance_length == 3.0
    assert got.same_share == pytest.approx((0.5 + 1.0) / 2)
    assert got.perplexity_ratio == pytest.approx(math.exp(2.0 / 6))
    assert got.distance_per_token == pytest.approx(0.05)
    assert got.replaced_per_token == pytest.approx(1 / 6)


def test_a_drawing_is_svg_with_every_point_inside() -> None:
    points = [(1.0, 1.5, "ε = 0"), (1.2, 2.5, "a < b")]
    root = ElementTree.fromstring(scatter(points, Labels("Speed & quality", "x", "y")))
    space = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{space}circle")
    places = [(float(c.get("cx")), float(c.get("cy"))) for c in circles]
    assert len(places) == 2
    assert all(70 < x < 600 and 50 < y < 345 for x, y in places)
    assert places[0][0] < places[1][0] and places[0][1] > places[1][1]
    assert {"a < b", "Speed & quality"} <= {t.text for t in root.findall(f"{space}text")}


def test_one_point_is_drawn_too() -> None:
    assert "circle" in scatter([(1.0, 2.0, "only")], Labels("t", "x", "y"))
