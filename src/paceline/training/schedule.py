"""The course of a run: warm-up, a stable phase of any length, and a decay that ends it.

Warm-up–stable–decay (WSD; Hu et al. 2024, MiniCPM, arXiv 2404.06395): the learning rate rises,
stays at its peak, and falls at the end. The stable phase does not know how long it will be, so the
same run may be ended at any time by a decay, or go on from the state before a decay. The decay is
1 - sqrt(share of it that is over), which Hägele et al. 2024 (arXiv 2405.18392) found better than a
straight line; a fifth of the steps is enough by the same measurements.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from paceline.core import InvalidRequest
from paceline.training.config import TrainConfig

TIMED = 5  # first steps of a run of some hours: they tell how many steps there will be
FIRST_SHARE = 0.02  # of the peak learning rate meanwhile
SHORTENED = 0.5  # of the usual decay, where a run ends early
STOPPED = "a stop"  # what a decay was decided for that somebody asked for


@dataclass(slots=True)
class Decisions:
    """What a run decided, in steps. It is saved, so that a resumed run does the same.

    `rising` is the length of the warm-up, `grown` the first step with whole blocks; None is not yet
    decided. The decay takes `falling` steps from `decay_start` on; `ends` says for which end it was
    decided, like "400 steps", or STOPPED.
    """

    rising: int | None = None
    grown: int | None = None
    decay_start: int | None = None
    falling: int = 0
    ends: str = ""


class Schedule:
    """Decides the learning rate and the block of each step, and where the run ends.

    `total` is the number of steps; None for a run of `config.hours`. Decisions that need measured
    time are made once and kept in `decisions`.
    """

    def __init__(self, config: TrainConfig, total: int | None) -> None:
        self._config, self.total = config, total
        self.decisions = Decisions()
        self._timed_from = 0, 0.0  # steps and seconds; the first step is slower than others
        self._decide_beginning(0, 0.0)

    @property
    def ends(self) -> str:
        """The end that this run is planned for."""
        return f"{self.total} steps" if self.total is not None else f"{self._config.hours:g} hours"

    @property
    def decaying(self) -> bool:
        return self.decisions.decay_start is not None

    @property
    def end(self) -> int | None:
        """The number of steps after which the run ends; None while that is open."""
        start = self.decisions.decay_start
        return self.total if start is None else start + self.decisions.falling

    def restore(self, saved: dict[str, Any]) -> None:
        self.decisions = Decisions(**saved)

    def saved(self) -> dict[str, Any]:
        return asdict(self.decisions)

    def planned_otherwise(self, saved: dict[str, Any]) -> bool:
        """Return whether `saved` decided on a decay for another end than that of this run."""
        return saved["decay_start"] is not None and saved["ends"] != self.ends

    def check(self, step: int, seconds: float) -> None:
        """Raise InvalidRequest where a run that took `step` steps in `seconds` is past its end."""
        if self.decaying:
            return
        if self.total is None:
            if seconds >= self._budget:
                expected = f"more than the {seconds / 3600:.3g} hours that the run has taken"
                raise InvalidRequest("hours", self._config.hours, expected)
        elif step > self.total:
            field = "steps" if self._config.epochs is None else "epochs"
            expected = f"more than the {step} steps that the run has taken"
            raise InvalidRequest(field, self.ends, expected)

    def decide(self, step: int, seconds: float) -> bool:
        """Decide what can be decided before step `step`, after `seconds` of this run; return
        whether the decay begins here."""
        self._decide_beginning(step, seconds)
        if self.decaying:
            return False
        if self.total is not None:
            falling = math.ceil(self._config.decay * self.total)
            if step < self.total - falling:
                return False
            return self._decay(step, self.total - step)
        budget = self._budget
        if step < TIMED or seconds < (1 - self._config.decay) * budget:
            return False
        return self._decay(step, round((budget - seconds) * step / seconds))

    def stop(self, step: int, ends: str) -> bool:
        """Begin a short decay at step `step`, because the run is to end soon; return whether it
        begins: a run that decays already goes on as it is."""
        if self.decaying:
            return False
        return self._decay(step, math.ceil(SHORTENED * self._config.decay * step), ends)

    def lr_share(self, step: int) -> float:
        """Return the share of the peak learning rates in step `step`, counted from 0."""
        rising, start = self.decisions.rising, self.decisions.decay_start
        share = FIRST_SHARE if rising is None else min(1.0, (step + 1) / max(1, rising))
        if start is None:
            return share
        over = (step + 1 - start) / self.decisions.falling
        final = self._config.final_lr
        return share * (final + (1 - final) * (1 - math.sqrt(over)))

    def whole_blocks(self, step: int) -> bool:
        """Return whether blocks have their full size in step `step`."""
        grown = self.decisions.grown
        return self._config.short_block is None or (grown is not None and step >= grown)

    def share_left(self, step: int, seconds: float) -> float:
        """Return what is to come of a run as a share of what was, after `step` steps in
        `seconds`."""
        if self.end is not None:
            return (self.end - step) / max(1, step)
        return max(0.0, self._budget / max(1e-9, seconds) - 1)

    @property
    def _budget(self) -> float:
        assert self._config.hours is not None
        return 3600 * self._config.hours

    def _decide_beginning(self, step: int, seconds: float) -> None:
        config, decisions, total = self._config, self.decisions, self.total
        if step == 1:
            self._timed_from = step, seconds
        if total is None and step >= TIMED and decisions.rising is None:
            steps_before, seconds_before = self._timed_from
            each = max(1e-6, seconds - seconds_before) / (step - steps_before)
            expected = step + (self._budget - seconds) / each
            decisions.rising = max(TIMED, math.ceil(config.warmup * expected))
        if total is not None and decisions.rising is None:
            decisions.rising = math.ceil(config.warmup * total)
        if config.short_block is None or decisions.grown is not None:
            return
        share = config.value("short_share")
        if total is not None:
            decisions.grown = math.ceil(share * total)
        elif seconds >= share * self._budget:
            decisions.grown = step

    def _decay(self, step: int, falling: int, ends: str = "") -> bool:
        decisions = self.decisions
        decisions.decay_start, decisions.falling = step, max(1, falling)
        decisions.ends = ends or self.ends
        return True
