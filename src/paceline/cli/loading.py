"""Load a model for a command: show its stages on a terminal, and pause garbage collection."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status

from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.llm import LLM


def open_model(config: EngineConfig) -> LLM:
    """Load a model into this process, with its stages on the terminal."""
    with collecting_paused(), _stages_shown():
        from paceline.llm import LLM

        return LLM(config=config)


@contextmanager
def collecting_paused() -> Iterator[None]:
    """Collect no garbage meanwhile, and never look again at what lives by then.

    Imports and loading make hundreds of thousands of objects that stay: to look for cycles among
    them takes a tenth of a start, and later milliseconds of a step.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _stages_shown() -> Iterator[None]:
    """Show the newest line of Paceline's log while the context lasts, where stderr is a terminal;
    warnings stay."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield
        return
    logger = logging.getLogger("paceline")
    before = logger.level
    with console.status("starting") as status:
        handler = _Stages(status)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.setLevel(before)
            logger.removeHandler(handler)


class _Stages(logging.Handler):
    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            self._status.update(record.getMessage(), spinner="dots")
        else:
            self._status.console.print(record.getMessage(), markup=False, soft_wrap=True)
