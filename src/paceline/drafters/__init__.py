"""Drafters: one file each. Importing this package fills the registry of `drafters.base`."""

from __future__ import annotations

from paceline.drafters import dflash, draft_model, hybrid, mock, ngram, replay, suffix
from paceline.drafters.base import build, kinds
from paceline.drafters.spec import make_drafters, parse_spec

__all__ = [
    "build",
    "dflash",
    "draft_model",
    "hybrid",
    "kinds",
    "make_drafters",
    "mock",
    "ngram",
    "parse_spec",
    "replay",
    "suffix",
]
