"""What `pip install 'paceline[train]'` adds; it is asked for when it is needed, and not before."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.core import PacelineError


class MissingExtra(PacelineError):
    """A package of the extra `train` is not installed."""


def yaml_module() -> Any:
    return _module("yaml", "pyyaml")


def parquet_module() -> Any:
    return _module("pyarrow.parquet", "pyarrow")


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"training sets need the package {package}: pip install 'paceline[train]'"
        ) from error
