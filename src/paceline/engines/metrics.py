"""What an engine's /metrics say, under one set of names."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.rounds import acceptance_length


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean and two percentiles of a time, in seconds."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Gauges of now and counters since the engine's start; None where it does not tell.

    `accepted_by_position[k]` counts rounds that accepted draft token k + 1. Shares are 0 to 1.
    """

    running: int
    waiting: int
    kv_usage: float | None = None
    ttft: Spread | None = None
    tpot: Spread | None = None
    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests_finished: int = 0
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] = field(default=())

    @property
    def acceptance_length(self) -> float | None:
        """AL of all rounds that drafted, incl. bonus."""
        if self.accepted is None or self.drafts is None:
            return None
        return acceptance_length(self.accepted, self.drafts)

    @property
    def prefix_hit_share(self) -> float | None:
        if not self.prefix_queries or self.prefix_hits is None:
            return None
        return self.prefix_hits / self.prefix_queries

    def since(self, before: EngineMetrics) -> EngineMetrics:
        """Return the counters of the time since `before`; gauges and spreads stay today's.

        A counter that fell belongs to an engine that was restarted: it then counts from zero.
        """
        raise NotImplementedError
