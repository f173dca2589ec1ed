"""Speed against measured quality: the same prompts under one lossy budget after the other.

Quality is measured by the target: the perplexity of the text beside that of the lossless text, the
share of the text that is still the same, and the total variation that was used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.table import Table

from paceline.bench.load.answers import InProcess, MeasuredAnswer
from paceline.bench.load.paired import Pair
from paceline.bench.prompts import BenchPrompt
from paceline.bench.report.tables import base_table
from paceline.bench.report.words import number
from paceline.core import SamplingParams

if TYPE_CHECKING:
    from paceline.llm import LLM

BUDGETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class LossyLevel:
    """One budget: speed from the paired runs, quality from the texts."""

    epsilon: float
    speedup: float
    acceptance_length: float | None
    same_share: float  # mean share of the lossless text before the first difference
    perplexity_ratio: float
    distance_per_token: float
    replaced_per_token: float


def answer_all(
    llm: LLM, params: SamplingParams, prompts: Sequence[BenchPrompt], epsilon: float
) -> list[MeasuredAnswer]:
    """Answer every prompt once more, with the log-probabilities of the target's raw rows."""
    ask = InProcess(llm, replace(params, logprobs=0))
    return [ask.ask(prompt, {"lossy": epsilon}) for prompt in prompts]


def level(
    epsilon: float,
    pairs: Sequence[Pair],
    answers: Sequence[MeasuredAnswer],
    lossless: Sequence[MeasuredAnswer],
) -> LossyLevel:
    """Return one budget's numbers from its paired runs, and its texts beside the lossless ones."""
    tokens = sum(len(answer.token_ids) for answer in answers)
    lengths = [al for pair in pairs if (al := pair.acceptance_length) is not None]
    return LossyLevel(
        epsilon=epsilon,
        speedup=statistics.geometric_mean(pair.speedup for pair in pairs),
        acceptance_length=statistics.mean(lengths) if lengths else None,
        same_share=statistics.mean(
            _common_length(answer.token_ids, plain.token_ids) / max(1, len(plain.token_ids))
            for answer, plain in zip(answers, lossless, strict=True)
        ),
        perplexity_ratio=math.exp(_surprise(answers) - _surprise(lossless)),
        distance_per_token=sum(answer.distance for answer in answers) / tokens,
        replaced_per_token=sum(answer.replaced_tokens for answer in answers) / tokens,
    )


def _surprise(answers: Sequence[MeasuredAnswer]) -> float:
    """Return the mean negative log-probability of a token, in nats."""
    return -statistics.mean(value for answer in answers for value in answer.logprobs)


def _common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    pairs = zip(ids, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(others)))


def level_table(levels: Sequence[LossyLevel], title: str) -> Table:
    quality = ("perplexity\n÷ lossless", "same text", "TV used\nper token", "replaced\nper token")
    table = base_table(title, numbers=("ε", "speedup", "AL", *quality))
    for level in levels:
        table.add_row(
            f"{level.epsilon:g}" if level.epsilon else "0 (lossless)",
            f"{level.speedup:.2f}×",
            number(level.acceptance_length),
            f"{level.perplexity_ratio:.3f}",
            f"{level.same_share:.0%}",
            f"{level.distance_per_token:.4f}",
            f"{level.replaced_per_token:.4f}",
        )
    return table


def points(levels: Sequence[LossyLevel]) -> list[tuple[float, float, str]]:
    """Return the speedup over the perplexity ratio of each level, labelled by its budget."""
    return [(level.perplexity_ratio, level.speedup, f"ε = {level.epsilon:g}") for level in levels]
