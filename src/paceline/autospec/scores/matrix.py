"""The matrix of scores: what each drafter would have accepted in each cohort, and its worth.

It is plain numbers, so that whoever decides needs neither a model nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from paceline.autospec.sums import R, moments, ratio_of, squares
from paceline.core.documents import Document

FORMAT = "paceline-scores/1"
ALL = ""  # in place of a cohort: all of them
NONE = "none"  # the candidate that never drafts
Z95 = 1.959964


class Estimate(Document):
    """A ratio of sums over requests, with its standard error and its 95% interval; these are None
    where there are fewer than two requests."""

    value: float
    error: float | None = None
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of so many times the value."""
        numbers = {name: number for name, number in self.model_dump().items() if number is not None}
        return Estimate(**{name: factor * number for name, number in numbers.items()})


def ratio_estimate(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Return sum(above) ÷ sum(below), a value of each for every request; None where nothing is
    below.

    The rounds of one answer hang together, so the request is the unit: by the delta method the
    variance is n/(n - 1) times the sum of (above - ratio × below)², over the square of what is
    below.
    """
    sums = moments(above, below).sum(axis=1)
    count, total = sum(part > 0 for part in below), float(sums[R])
    if not total:
        return None
    value = float(ratio_of(sums))
    if count < 2:
        return Estimate(value=value)
    error = math.sqrt(count / (count - 1) * float(squares(sums, value))) / total
    return Estimate(value=value, error=error, low=value - Z95 * error, high=value + Z95 * error)


class PartScore(Document):
    """The rounds that one part of a drafter drafted. AL counts the bonus token."""

    rounds: int
    al: float


class ScoreCell(Document):
    """The score of one drafter in one cohort.

    al                 acceptance length of rounds with a draft, the bonus token included
    tokens_per_round   the same over all rounds, those without a draft included
    positions          share of all rounds that accepted so many draft tokens or more: 1, 2, …
    speedup            speed by the cost table with the best bound of the draft length, 1 without
                       drafts; None where there is no table
    draft_length       that bound
    """

    drafter: str
    cohort: str
    requests: int
    rounds: int
    draft_rounds: int
    al: Estimate | None
    tokens_per_round: Estimate | None
    positions: list[float] = Field(default_factory=list)
    parts: dict[str, PartScore] = Field(default_factory=dict)
    speedup: Estimate | None = None
    draft_length: int | None = None


class ScoreCosts(Document):
    """Where the speed of a matrix comes from: requests at once, and the seconds of a step of one
    row for each of them, by the cost table of this machine."""

    requests: int
    step_seconds: float
    machine: str


class ScoreMatrix(Document):
    """Scores of drafters on the same texts.

    `drafters` holds the spec of each candidate; `left_out` counts texts that were not scored, and
    why; `shares_answers` says whether look-ups remembered the answers of earlier texts.
    """

    model: str
    drafters: dict[str, str]
    texts: int
    tokens: int
    shares_answers: bool
    left_out: dict[str, int] = Field(default_factory=dict)
    costs: ScoreCosts | None = None
    cells: list[ScoreCell] = Field(default_factory=list)

    @property
    def cohorts(self) -> list[str]:
        """The cohorts that were scored, the largest first."""
        sizes = {c.cohort: c.requests for c in self.cells if c.cohort != ALL}
        return sorted(sizes, key=lambda cohort: (-sizes[cohort], cohort))

    def cell(self, drafter: str, cohort: str = ALL) -> ScoreCell:
        """Return a cell; ALL stands for all cohorts. Raises KeyError."""
        for cell in self.cells:
            if (cell.drafter, cell.cohort) == (drafter, cohort):
                return cell
        raise KeyError((drafter, cohort))

    def as_json(self) -> dict[str, object]:
        return {"format": FORMAT, **self.model_dump(mode="json")}
