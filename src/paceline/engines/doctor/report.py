"""What the doctor found, as a value and as sentences."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from paceline.evaluate.paired import Difference


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was looked at: `ok` False is what is wrong, with the evidence for it and what
    to do; None is worth knowing, or was not to be told."""

    name: str
    ok: bool | None
    evidence: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        text = f"{self.name}: {self.evidence}"
        return f"{text}; {self.remedy}." if self.remedy else f"{text}."


@dataclass(frozen=True, slots=True)
class PositionResult:
    """One draft position: the share of rounds that accepted it at the engine, the share that should
    have, and by how much the engine falls short, with its 95% interval."""

    position: int
    achieved: float
    expected: float
    short: float
    interval: tuple[float, float]
    z: float


@dataclass(slots=True)
class ServedReport:
    """The examination of a served pair. Acceptance lengths include the bonus token. `expected` is
    what this drafter should accept in the engine's own rounds, on the engine's own text."""

    engine: str
    version: str | None
    model: str
    draft_len: int | None = None
    rounds: int = 0
    achieved: float | None = None
    expected: float | None = None
    achieved_error: float | None = None
    short: Difference | None = None
    positions: list[PositionResult] = field(default_factory=list)
    findings: list[DoctorFinding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return all(finding.ok is not False for finding in self.findings)

    @property
    def wrong(self) -> list[DoctorFinding]:
        return [finding for finding in self.findings if finding.ok is False]

    @property
    def verdict(self) -> str:
        """A sentence for each finding, or one that nothing is wrong."""
        if not self.healthy:
            return "\n".join(finding.sentence for finding in self.wrong)
        if self.achieved is None or self.expected is None:
            return "Nothing could be measured."
        return (
            f"Nothing is wrong: acceptance length {self.achieved:.2f} incl. bonus at the engine, "
            f"and {self.expected:.2f} is what this drafter should have in the same rounds."
        )

    def as_json(self) -> dict[str, object]:
        """Return plain JSON values."""
        shown = asdict(self) | {"healthy": self.healthy, "verdict": self.verdict}
        if self.short is not None:
            finite = math.isfinite(self.short.error)
            low, high = self.short.interval
            shown["short"] = {
                "mean": self.short.mean,
                "interval": [low, high] if finite else None,
                "z": self.short.z,
            }
        return shown
