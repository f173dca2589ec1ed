"""Sphinx: Markdown pages (MyST), the furo theme. `make docs` builds them."""

from __future__ import annotations

import re
from typing import Any

from paceline import __version__

project = "Paceline"
author = "The Paceline authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"

html_theme = "furo"
html_title = f"Paceline {release}"


def verbatim(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Show docstrings as they are written: they are plain text with columns, not markup."""
    if lines:
        lines[:] = ["::", "", *(f"   {line}" for line in lines), ""]


def plain_markdown(app: Any, page: str, source: list[str]) -> None:
    """Add what only Sphinx needs to pages that are plain Markdown for other readers: the index's
    lists become the contents of the sidebar, and the table of classes their documentation."""
    if page == "index":
        _, _, pages = source[0].partition("## Pages")
        for part in pages.partition("\n## ")[0].split("\n### ")[1:]:
            caption = part.partition("\n")[0]
            names = "\n".join(re.findall(r"^- \[.*?\]\((.*?)\.md\)", part, re.M))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n"
    if page == "python-api":
        rows = re.findall(r"^\| `(paceline\.[\w.]+)` \| (.*?) ?\|", source[0], re.M)
        classes = []
        for name, members in rows:
            listed = f"\n   :members: {members.replace('`', '')}" if members else ""
            classes.append(f".. autoclass:: {name}{listed}\n")
        joined = "\n".join(classes)
        source[0] = source[0].replace("## Errors", f"```{{eval-rst}}\n{joined}```\n\n## Errors")


def setup(app: Any) -> None:
    app.connect("source-read", plain_markdown)
    app.connect("autodoc-process-docstring", verbatim)
