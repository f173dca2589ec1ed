"""Charts: every number has its mark at its place, and whatever users name is escaped."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from paceline.bench.report.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Axis,
    ChartBar,
    Labels,
    bars,
    cloud,
    scatter,
)

SVG = "{http://www.w3.org/2000/svg}"
LABELS = Labels("a < b & c", "x", "y")


def read(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def noted(root: ElementTree.Element, mark: str) -> list[ElementTree.Element]:
    return [each for each in root.iter(f"{SVG}{mark}") if each.find(f"{SVG}title") is not None]


def height(bar: ElementTree.Element) -> float:
    return float(bar.attrib["height"])


def test_bars_stand_on_the_axis_and_are_as_high_as_their_numbers() -> None:
    values = [[ChartBar(1.0, "one"), ChartBar(2.0, "two <2>")], [ChartBar(None), ChartBar(4.0)]]
    root = read(bars(["a", "b"], ["s", "t"], values, LABELS))
    drawn = noted(root, "rect")
    assert [bar.find(f"{SVG}title").text for bar in drawn] == ["one", "two <2>", None]  # type: ignore[union-attr]
    assert height(drawn[1]) == pytest.approx(2 * height(drawn[0]), abs=0.2)
    assert height(drawn[2]) == pytest.approx(4 * height(drawn[0]), abs=0.3)
    for bar in drawn:
        assert float(bar.attrib["y"]) + height(bar) == pytest.approx(BOTTOM, abs=0.1)
    assert [bar.attrib["class"] for bar in drawn] == ["s0", "s1", "s1"]


def test_whiskers_and_the_line_are_drawn_where_they_are_given() -> None:
    values = [[ChartBar(2.0, "", (1.0, 3.0))], [ChartBar(2.0)]]
    root = read(bars(["a", "b"], ["s"], values, LABELS, line=1.0))
    (whisker,) = root.findall(f"{SVG}path")
    (line,) = [each for each in root.iter(f"{SVG}line") if "dashed" in each.attrib["class"]]
    start, end = whisker.attrib["d"].split("h8m-4 0V")
    low, high = float(start.split(" ")[1]), float(end.split("m")[0])
    assert TOP < high < low < BOTTOM
    assert float(line.attrib["y1"]) == pytest.approx(low, abs=0.1)  # both are at 1
    assert "dashed" not in bars(["a"], ["s"], [[ChartBar(2.0)]], LABELS).split("</style>")[1]


def test_a_chart_without_any_height_is_drawn_empty() -> None:
    root = read(bars([], ["s"], [], LABELS))
    assert noted(root, "rect") == []
    assert "a < b & c" in "".join(root.itertext())


def test_long_names_of_groups_are_cut() -> None:
    name = "a set with a name that does not fit"
    groups = [name] * 12
    words = "".join(read(bars(groups, ["s"], [[ChartBar(1.0)]] * 12, LABELS)).itertext())
    assert name not in words and "…" in words


def test_a_cloud_has_equal_scales_and_the_diagonal() -> None:
    root = read(cloud(["p", "q"], [[(1.0, 1.0, "even")], [(3.0, 1.5, "half")]], LABELS))
    even, half = noted(root, "circle")
    diagonal = root.findall(f"{SVG}line[@class='mark dashed']")[0]
    places = [float(diagonal.attrib[name]) for name in ("x1", "y1", "x2", "y2")]
    assert places == [LEFT, BOTTOM, RIGHT, TOP]
    x, y = float(even.attrib["cx"]), float(even.attrib["cy"])
    assert (x - LEFT) / (RIGHT - LEFT) == pytest.approx((BOTTOM - y) / (BOTTOM - TOP), abs=0.01)
    assert (even.attrib["class"], half.attrib["class"]) == ("s0", "s3")
    assert "y = x" in "".join(root.itertext())


def test_labels_of_points_are_escaped() -> None:
    drawing = scatter([(1.0, 1.0, "<script>"), (2.0, 3.0, "b")], LABELS)
    assert "<script>" not in drawing and "<script>" in "".join(read(drawing).itertext())


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0.0, 12.0, ["0", "2", "4", "6", "8", "10", "12"]),
        (95.0, 105.0, ["96", "98", "100", "102", "104"]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[str]) -> None:
    assert [words for _, words in Axis(low, high, 0.0, 100.0).ticks] == expected
