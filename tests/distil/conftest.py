"""A tiny teacher, what it answered, and a student with other weights and the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.tiny import save_tiny
from tests.training.conftest import PROMPTS, write_set


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "large"
    folder.mkdir()
    return save_tiny(folder, blur=0.0, num_layers=3)


@pytest.fixture(scope="session")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("student") / "small"
    folder.mkdir()
    return save_tiny(folder, blur=0.05, num_layers=2)


@pytest.fixture(scope="session")
def answers(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("sets") / "answers", teacher, PROMPTS)
