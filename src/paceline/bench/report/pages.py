"""Templates of reports: HTML, Markdown and SVG, one environment for each package that has some."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from paceline.bench.report.words import FILTERS

PACKAGE = "paceline.bench.report"


def render(template: str, values: Mapping[str, object], package: str = PACKAGE) -> str:
    """Return a template of `package`, or of this one, filled in; HTML and SVG are escaped."""
    return _environment(package).get_template(template).render(**values)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, PACKAGE))]),
        autoescape=select_autoescape(["html", "svg"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment
