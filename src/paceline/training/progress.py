"""The progress of a run: its evaluations, the best of them, and regressions out of domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from paceline.training.evaluation import Score


@dataclass(slots=True)
class Progress:
    """The evaluations of a run. A run that starts from a drafter (`judged`) is compared with the
    score of that drafter before the first step: out of domain it must not fall by more than the
    share `regression`, and a step must be better to be the best. Random weights are no standard.

    `best` is the step of the best mean held-out acceptance length among those without regression;
    `waited` counts evaluations since then.
    """

    regression: float
    judged: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None
    best_length: float = 0.0
    waited: int = 0

    def add(self, step: int, held: Mapping[str, Score], other: Mapping[str, Score]) -> bool:
        """Add an evaluation; return whether it is the best so far."""
        self.history.append(
            {
                "step": step,
                "held_out": {name: score.as_json() for name, score in held.items()},
                "out_of_domain": {name: score.as_json() for name, score in other.items()},
            }
        )
        length = fmean(score.length for score in held.values())
        if not self.judged and len(self.history) == 1:
            return False
        better = not self.regressed and (self.best is None or length > self.best_length)
        if better:
            self.best, self.best_length, self.waited = step, length, 0
        else:
            self.waited += 1
        return better

    @property
    def regressions(self) -> dict[str, float]:
        """The sets out of domain whose acceptance length fell by more than allowed since the start,
        and the share by which it fell."""
        if not self.judged:
            return {}
        first, last = self.history[0]["out_of_domain"], self.history[-1]["out_of_domain"]
        fallen = {name: 1 - last[name]["length"] / first[name]["length"] for name in first}
        return {name: share for name, share in fallen.items() if share > self.regression}

    @property
    def regressed(self) -> bool:
        return bool(self.history) and bool(self.regressions)

    def numbers(self) -> dict[str, float]:
        """Return the last evaluation for the log: AL incl. bonus and the acceptance of the first
        slot."""
        last, entries = self.history[-1], {}
        for kind in ("held_out", "out_of_domain"):
            for name, score in last[kind].items():
                entries[f"{kind}/{name}/al"] = score["length"]
                entries[f"{kind}/{name}/first"] = score["positions"][0]
        for name, share in self.regressions.items():
            entries[f"regression/{name}"] = share
        return entries

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Progress:
        return cls(**record)
