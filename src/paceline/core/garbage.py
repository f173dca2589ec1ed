"""Pause Python's garbage collector, and exempt objects that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_paused() -> Iterator[None]:
    """Pause garbage collection while the context lasts, and exempt the objects that exist at its
    end.

    Imports, loading and the making of an app leave hundreds of thousands of objects that stay: to
    look for cycles among them takes a tenth of a start, and later milliseconds of a step.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
