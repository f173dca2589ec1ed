"""Sphinx: Markdown pages (MyST), the furo theme. `make docs` builds them."""

from __future__ import annotations

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


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", verbatim)
