"""What an assessment says: a change's kind, its evidence, the decision, and why not another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class DriftKind(StrEnum):
    """What changed."""

    LEARNING = "learning"  # the reference is still too short
    STEADY = "steady"  # nothing
    SEASON = "season"  # the hour of the day or the week
    MIX = "mix"  # the shares of cohorts
    WITHIN = "within"  # a cohort's own acceptance
    DEPLOYMENT = "deployment"  # a step in all cohorts at once
    REPETITION = "repetition"  # answers that loop: AL rises to γ + 1
    DECAY = "decay"  # acceptance falls late in answers or in long contexts only


class DriftDecision(StrEnum):
    """What to do."""

    NOTHING = "nothing"
    WAIT = "wait"
    ALERT = "alert"
    OFFER_ROLLBACK = "offer rollback"
    PROPOSE_ROUTES = "propose routes"
    RETRAIN = "retrain"


@dataclass(frozen=True, slots=True)
class FallenCohort:
    """A cohort whose AL fell: its share of all rounds, its AL now, and the AL before the fall."""

    label: str
    share: float
    now: float
    before: float


@dataclass(frozen=True, slots=True)
class RetrainWorth:
    """What training anew would gain and cost: accelerator hours of the horizon, and their price."""

    hours_saved: float
    gain: float
    cost: float

    @property
    def pays(self) -> bool:
        return self.gain > self.cost


@dataclass(frozen=True, slots=True)
class DriftReport:
    """One finding.

    change      of AL relative to what was expected; `error` its standard error
    before, now AL that was expected, and seen
    mix, season, within  what these contribute to the change of the total AL, in tokens per round
    grown       cohorts that have become a large part of the rounds
    start, end  the evidence, seconds since the epoch; `requests` and `rounds` in it
    fallen      the cohorts one by one, where a fall within them is found
    why         the evidence in sentences; `why_not` says why nothing else is done
    """

    kind: DriftKind
    decision: DriftDecision
    cohorts: tuple[str, ...]
    start: float
    end: float
    change: float = 0.0
    error: float = 0.0
    before: float = 0.0
    now: float = 0.0
    mix: float = 0.0
    season: float = 0.0
    within: float = 0.0
    requests: int = 0
    rounds: int = 0
    grown: tuple[str, ...] = ()
    fallen: tuple[FallenCohort, ...] = ()
    worth: RetrainWorth | None = None
    why: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def sentences(self) -> str:
        """Return the finding as text: kind, decision, why and why not."""
        head = f"{self.kind}: {self.decision}"
        where = f" ({', '.join(self.cohorts)})" if self.cohorts else ""
        return " ".join((f"{head}{where}.", *self.why, *self.why_not))
