"""Packages that only some commands need: how to install one that is missing."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

from paceline.core.errors import PacelineError


class MissingPackage(PacelineError):
    """A package that only some commands need is not installed. The message names the pip command
    that installs it."""

    def __init__(self, what: str, package: str) -> None:
        super().__init__(f"{what} the package {package}: pip install '{requirement(package)}'")


def requirement(package: str) -> str:
    """Return a package with the versions that Paceline works with, as pip takes it."""
    try:
        stated = requires("paceline") or []
    except PackageNotFoundError:  # run from a folder of sources
        stated = []
    plain = [line.partition(";")[0].strip() for line in stated]
    versions = (line for line in plain if re.split(r"[^\w.-]", line)[0] == package)
    return next(versions, package)
