"""Speed against measured quality: the same prompts under one lossy budget after the other.

Quality is what the target itself says of the text: its perplexity beside that of the lossless text,
how much of the text is still the same, and the total variation that was used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from paceline.bench.load.in_process import InProcess
from paceline.bench.load.paired import Pair
from paceline.bench.report.tables import base_table
from paceline.core import SamplingParams

if TYPE_CHECKING:
    from paceline.llm import LLM

BUDGETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class LossyText:
    """The answer to one prompt under one budget."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    distance: float
    replaced: int


@dataclass(frozen=True, slots=True)
class LossyLevel:
    """One budget: speed from the paired runs, quality from the texts."""

    epsilon: float
    speedup: float
    acceptance_length: float
    same_share: float  # mean share of the lossless text before the first difference
    perplexity_ratio: float
    distance_per_token: float
    replaced_per_token: float


def say(
    llm: LLM, params: SamplingParams, prompts: Sequence[Any], epsilon: float
) -> list[LossyText]:
    """Answer every prompt once more, with the log-probabilities of the target's raw rows."""
    ask = InProcess(llm, replace(params, logprobs=0))
    answers = [ask.ask(prompt, {"lossy": epsilon}) for prompt in prompts]
    return [
        LossyText(tuple(a.token_ids), tuple(a.logprobs), a.distance, a.replaced_tokens)
        for a in answers
    ]


def level(
    epsilon: float, pairs: Sequence[Pair], said: Sequence[LossyText], lossless: Sequence[LossyText]
) -> LossyLevel:
    tokens = sum(len(one.token_ids) for one in said)
    return LossyLevel(
        epsilon=epsilon,
        speedup=statistics.geometric_mean(pair.speedup for pair in pairs),
        acceptance_length=statistics.mean(pair.acceptance_length for pair in pairs),
        same_share=statistics.mean(
            _common(a.token_ids, b.token_ids) / max(1, len(b.token_ids))
            for a, b in zip(said, lossless, strict=True)
        ),
        perplexity_ratio=math.exp(_surprise(said) - _surprise(lossless)),
        distance_per_token=sum(one.distance for one in said) / tokens,
        replaced_per_token=sum(one.replaced for one in said) / tokens,
    )


def _surprise(said: Sequence[LossyText]) -> float:
    """Mean negative log-probability of a token, in nats."""
    return -statistics.mean(value for one in said for value in one.logprobs)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def level_table(levels: Sequence[LossyLevel], title: str) -> Table:
    table = base_table(title)
    for name in ("ε", "speedup", "AL", "perplexity\n÷ lossless", "same text", "TV used\nper token",
                 "replaced\nper token"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for one in levels:
        table.add_row(
            f"{one.epsilon:g}" if one.epsilon else "0 (lossless)",
            f"{one.speedup:.2f}×",
            f"{one.acceptance_length:.2f}",
            f"{one.perplexity_ratio:.3f}",
            f"{one.same_share:.0%}",
            f"{one.distance_per_token:.4f}",
            f"{one.replaced_per_token:.4f}",
        )
    return table


def points(levels: Sequence[LossyLevel]) -> list[tuple[float, float, str]]:
    """Return the speedup over the perplexity ratio of each level, labelled by its budget."""
    return [(level.perplexity_ratio, level.speedup, f"ε = {level.epsilon:g}") for level in levels]
