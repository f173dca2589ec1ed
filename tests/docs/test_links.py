"""Pages read well where they are shown as plain Markdown, as on a repository's site."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages

OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
CARDS = sorted((ROOT / "src/paceline/drafters/shipped").glob("*/README.md"))
PAGES = [*pages(), *OTHERS, *CARDS]
LINK = re.compile(r"(?<!`)\[([^]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|<!--.*?-->", re.M | re.S)


def prose(page: Path) -> str:
    return CODE.sub("", page.read_text("utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them of a heading's text."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.*)$", prose(page), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        names.add(slug if slug not in found else f"{slug}-{found[slug]}")
        found[slug] = found.get(slug, 0) + 1
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_a_text_and_lead_somewhere(page: Path) -> None:
    wrong = []
    for text, target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if target.startswith(("http://", "https://")):
            found = True
        elif not other.exists():
            found = False
        else:
            found = not anchor or anchor in anchors(other)
        if not text.strip() or not found:
            wrong.append(f"[{text}]({target})")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_markup_that_only_sphinx_reads(page: Path) -> None:
    assert (
        re.findall(r"^(?:```|:::)\{.*$|\{(?:doc|ref|class|func)\}`", page.read_text("utf-8"), re.M)
        == []
    )


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {target for _, target in LINK.findall(prose(index))}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed
