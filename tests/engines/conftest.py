"""Fixtures of the engines' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.first_generation import first_generation as make


@pytest.fixture(scope="session")
def first_generation() -> Path:
    """Return a DFlash drafter for SmolLM2-135M that vLLM loads."""
    return make()
