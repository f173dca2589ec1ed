"""Commands say what a start is doing, on a terminal and nowhere else."""

from __future__ import annotations

import gc
import io
import logging
from pathlib import Path

import pytest

from paceline.cli.loading import open_model
from paceline.core.garbage import collecting_paused
from paceline.engine.config import EngineConfig
from tests.engine.tiny import save_tiny


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def options(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(save_tiny(folder)), drafter="ngram", threads=1)


def test_a_terminal_shows_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("paceline.engine.build.check_fits", lambda *_: _warn())
    open_model(options(tmp_path))
    shown = terminal.getvalue()
    assert "reading" in shown and "loading" in shown
    assert "take care" in shown
    assert not logging.getLogger("paceline").handlers


def _warn() -> None:
    logging.getLogger("paceline.test").warning("take care")


def test_elsewhere_nothing_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_model(options(tmp_path))
    assert capsys.readouterr().err == ""


def test_garbage_is_collected_again_after_a_failed_start() -> None:
    with pytest.raises(RuntimeError), collecting_paused():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()
