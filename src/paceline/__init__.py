"""Paceline: lossless speculative decoding for self-hosted language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.core import Grammar, SamplingParams
    from paceline.llm import LLM

__all__ = ["LLM", "Grammar", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    # Lazy, because importing torch takes seconds that `paceline --help` should not cost.
    if name == "LLM":
        from paceline.llm import LLM

        return LLM
    if name in ("Grammar", "SamplingParams"):
        from paceline import core

        return getattr(core, name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
