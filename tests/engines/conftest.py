"""Fixtures of the engines' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.drafters import shipped
from tests.engines.first_generation import TARGET


@pytest.fixture(scope="session")
def first_generation() -> Path:
    """Return a DFlash drafter for SmolLM2-135M that vLLM loads."""
    return shipped.FOLDERS / TARGET
