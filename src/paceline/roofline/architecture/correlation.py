"""The number of distinct experts that a forward touches.

Uniform routing of T tokens with top k of E experts touches D(T) = E·(1 − (1 − k/E)^T). Tokens of
one text choose alike, so T is taken as T_eff = (1 + (B−1)·ρ_width) · (1 + (q−1)·ρ_depth), where B
requests bring q consecutive tokens each.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from paceline.core.errors import InvalidRequest, check_number

# Distinct experts among N tokens that Qwen3.6-35B-A3B (256 experts, 8 per token) was seen to choose
# on SPEED-Bench: N consecutive tokens of one text, and N tokens of as many texts.
_EXPERTS, _ACTIVE = 256, 8
_DEPTH = {2: 12.87, 3: 17.19, 4: 21.13, 6: 28.16, 8: 34.35, 12: 44.90, 16: 53.58}
_WIDTH = {2: 15.56, 3: 22.73, 4: 29.44, 6: 41.94, 8: 53.25, 12: 72.93, 16: 89.32}

Share = float | tuple[tuple[int, float], ...]


def distinct_experts(experts: int, active: int, tokens: float) -> float:
    """Expected distinct experts that `tokens` independent tokens touch, `active` each."""
    left_out: float = (1.0 - active / experts) ** tokens
    return experts * (1.0 - left_out)


def equivalent_tokens(experts: int, active: int, distinct: float) -> float:
    """Independent tokens that would touch `distinct` experts: the inverse of `distinct_experts`."""
    return math.log(1.0 - distinct / experts) / math.log(1.0 - active / experts)


@dataclass(frozen=True, slots=True)
class Correlation:
    """The weight of a further request (`width`) and of a further token of a request (`depth`).

    Each is a share (1 is independent, 0 the same experts again) or a table of (tokens, share),
    linear in log tokens between its lines and level beyond them.
    """

    width: Share = 1.0
    depth: Share = 1.0

    def __post_init__(self) -> None:
        for name in ("width", "depth"):
            share = getattr(self, name)
            if isinstance(share, tuple) and not share:
                raise InvalidRequest(f"correlation.{name}", share, "a share or a table of them")
            for value in [share] if not isinstance(share, tuple) else [line[1] for line in share]:
                check_number(f"correlation.{name}", value, 0, 1, "a share, 0 to 1")

    def tokens(self, batch: float, rows_per_request: float) -> float:
        """T_eff of a forward."""
        wide = 1.0 + (batch - 1) * _share(self.width, batch)
        return wide * (1.0 + (rows_per_request - 1) * _share(self.depth, rows_per_request))


def _share(share: Share, count: float) -> float:
    if not isinstance(share, tuple):
        return share
    if count <= share[0][0]:
        return share[0][1]
    for (low, start), (high, end) in itertools.pairwise(share):
        if count <= high:
            return start + (end - start) * math.log(count / low) / math.log(high / low)
    return share[-1][1]


def _measured(distinct: dict[int, float]) -> tuple[tuple[int, float], ...]:
    lines = []
    for count, seen in distinct.items():
        tokens = equivalent_tokens(_EXPERTS, _ACTIVE, seen)
        lines.append((count, (tokens - 1.0) / (count - 1.0)))
    return tuple(lines)


UNIFORM = Correlation()
MEASURED = Correlation(width=_measured(_WIDTH), depth=_measured(_DEPTH))
