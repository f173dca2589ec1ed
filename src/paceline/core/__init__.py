"""Dataclasses that every room shares: what is asked, what is drafted, what was decided.

No tensors and no torch here. Lengths are in tokens, times in seconds unless a name says otherwise.
"""

from __future__ import annotations

from paceline.core.drafts import DraftBatch, DraftTree, KVSpec, SparseRow, Verdict
from paceline.core.errors import CacheError, InvalidRequest, ModelError, PacelineError, QueueFull
from paceline.core.params import (
    MAX_DRAFT_LEN,
    DraftPolicy,
    Grammar,
    SamplingParams,
    SpeculativeParams,
)
from paceline.core.request import (
    ExplainedRound,
    FinishReason,
    OutputDelta,
    Request,
    RequestMetrics,
    TokenKind,
    TokenLogprobs,
    draw_seed,
)
from paceline.core.rounds import CutReason, Round, SpeculationStats, StepInfo, StreamInfo

__all__ = [
    "MAX_DRAFT_LEN",
    "CacheError",
    "CutReason",
    "DraftBatch",
    "DraftPolicy",
    "DraftTree",
    "ExplainedRound",
    "FinishReason",
    "Grammar",
    "InvalidRequest",
    "KVSpec",
    "ModelError",
    "OutputDelta",
    "PacelineError",
    "QueueFull",
    "Request",
    "RequestMetrics",
    "Round",
    "SamplingParams",
    "SparseRow",
    "SpeculationStats",
    "SpeculativeParams",
    "StepInfo",
    "StreamInfo",
    "TokenKind",
    "TokenLogprobs",
    "Verdict",
    "draw_seed",
]
