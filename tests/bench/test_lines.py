"""The charts that no library is worth loading for."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from paceline.bench.report.charts import Labels, lines

SVG = "{http://www.w3.org/2000/svg}"


def test_every_line_goes_through_its_points_on_common_axes() -> None:
    series = {"one": [(0.0, 1.0), (1.0, 2.0), (2.0, 1.5)], "<two>": [(0.0, 1.0), (2.0, 2.0)]}
    drawn = ElementTree.fromstring(lines(series, Labels("AL", "hours", "AL")))
    first, second = (
        [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
        for line in drawn.iter(f"{SVG}polyline")
    )
    assert first[0] == second[0] and first[1][1] == second[1][1] and first[2][0] == second[1][0]
    assert first[0][0] < first[1][0] < first[2][0] and first[0][1] > first[2][1] > first[1][1]
    words = "".join(drawn.itertext())
    assert "one" in words and "<two>" in words and re.search(r"\bhours\b", words)
