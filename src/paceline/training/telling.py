"""Which steps of a training are told of, and how."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.dataset.run_log import duration

LOG_EVERY = 10  # steps
SILENCE = 30.0  # seconds after which the next step is told of in any case


class Telling:
    """Chooses the steps that a run tells of: every tenth one, and the next one where it said
    nothing for SILENCE seconds. Times are seconds of the run, the same in all its processes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = self._told = seconds  # now, and when a step was told of last

    def is_due(self, step: int) -> bool:
        due = step % LOG_EVERY == 0 or self.seconds - self._told >= SILENCE
        if due:
            self._told = self.seconds
        return due


def line(step: int, numbers: Mapping[str, float]) -> str:
    """Return one line out of an entry of the log."""
    lengths = [f"{k[: -len('/al')]} AL {v:.3f}" for k, v in numbers.items() if k.endswith("/al")]
    fallen = [f"REGRESSION {k} -{100 * v:.0f}%" for k, v in numbers.items() if "regression" in k]
    if "decay_steps" in numbers:
        return f"step {step}: the learning rate falls, for {numbers['decay_steps']} steps"
    if "forecast/al" in numbers:
        low, high = numbers["forecast/low"], numbers["forecast/high"]
        lengths[-1] += f" ({low:.2f} to {high:.2f})"
    gaps = [f"production {k} {v:.2f}" for k, v in numbers.items() if k.startswith("gap/")]
    if "loss" not in numbers:
        return ", ".join([f"step {step}", *lengths, *gaps, *fallen])
    return (
        f"step {step}: loss {numbers['loss']:.3f}, {', '.join(lengths)}, "
        f"{numbers['slots_per_second']:.0f} slots/s, "
        f"{100 * numbers.get('peak_share/all', 0):.0f}% of the matmul peak, "
        f"{duration(numbers.get('hours_left'))} left"
    )
