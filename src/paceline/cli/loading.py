"""Load a model for a command: show its stages on a terminal, and pause garbage collection."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status

from paceline.core.garbage import collecting_paused
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.llm import LLM


def open_model(config: EngineConfig) -> LLM:
    """Load a model into this process, with its stages on the terminal."""
    with collecting_paused(), _stages_shown():
        from paceline.llm import LLM

        return LLM(config=config)


@contextmanager
def importing(*modules: str) -> Iterator[None]:
    """Import modules on a thread meanwhile: most of loading a model runs outside of Python."""

    def work() -> None:
        for module in modules:
            importlib.import_module(module)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:  # a process that ends in the middle of an import may crash
        thread.join()


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
