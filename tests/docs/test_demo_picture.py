"""The README's picture says where and when it was drawn, and docs/benchmarks.md says the same."""

from __future__ import annotations

import re
from html import unescape

from rich.console import Console

from paceline.cli.demo import picture, picture_title
from tests.docs.blocks import ROOT

PICTURE, README = ROOT / "docs/images/demo.svg", ROOT / "README.md"
TITLE = re.compile(r"make demo · (.+, \d+ cores?) · (\d{4}-\d{2}-\d{2})$")
SPEEDUP = re.compile(r"speedup, ([a-z -]+): (\d\.\d\d)×")


def texts(svg: str) -> list[str]:
    found = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return [unescape(text).replace("\xa0", " ").strip() for text in found]


def section(name: str) -> str:
    """Return a section of docs/benchmarks.md."""
    text = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_a_picture_has_the_machine_and_the_day_of_its_run() -> None:
    console = Console(record=True, width=92, quiet=True)
    drawn = texts(picture(console, picture_title()))
    assert any(TITLE.fullmatch(text) for text in drawn)


def test_readme_docs_and_picture_tell_of_one_run() -> None:
    drawn, told = texts(PICTURE.read_text("utf-8")), section("The demo")
    (title,) = [match for text in drawn if (match := TITLE.fullmatch(text))]
    machine, day = title.groups()
    assert f"`make demo-picture` on {day}, {machine}" in told
    speedups = dict(match.groups() for text in drawn if (match := SPEEDUP.match(text)))
    assert len(speedups) == 3
    for kind, speedup in speedups.items():
        assert re.search(rf"^\| {kind} \(\d\) \| {speedup} \|", told, re.MULTILINE)


def test_the_readme_says_nothing_of_the_picture_that_can_go_stale() -> None:
    (about,) = re.findall(
        r"`make demo-picture` drew the picture[^.;]*;([^.]*)\.", README.read_text()
    )
    assert not re.search(r"\d|EPYC|Xeon|AMD|Intel", about)
