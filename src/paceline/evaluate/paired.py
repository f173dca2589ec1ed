"""Two measurements of the same rounds: how far they differ, and whether that is chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CLEAR = 3.0  # standard errors: what is further apart is no chance
LARGEST_Z = 99.0
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of paired values, with its standard error."""

    mean: float
    error: float

    @property
    def z(self) -> float:
        """The mean in standard errors."""
        if self.error == 0:
            return 0.0 if self.mean == 0 else math.copysign(LARGEST_Z, self.mean)
        return max(-LARGEST_Z, min(LARGEST_Z, self.mean / self.error))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the mean."""
        return self.mean - 1.96 * self.error, self.mean + 1.96 * self.error

    @property
    def is_clear(self) -> bool:
        return abs(self.z) > CLEAR


def difference(groups: Sequence[Numbers]) -> Difference:
    """Return the mean of all values. Values of one group hang together, as the rounds of one answer
    do: the error is that of whole groups. One group alone is taken value by value."""
    groups = [group for group in groups if len(group)]
    if len(groups) == 1:
        groups = [groups[0][i : i + 1] for i in range(len(groups[0]))]
    count = sum(map(len, groups))
    if not count:
        return Difference(0.0, math.inf)
    mean = float(sum(group.sum() for group in groups)) / count
    if len(groups) < 2:
        return Difference(mean, math.inf)
    spread = sum(float((group - mean).sum()) ** 2 for group in groups)
    correction = len(groups) / (len(groups) - 1)
    return Difference(mean, math.sqrt(correction * spread) / count)
