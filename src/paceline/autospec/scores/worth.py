"""What acceptance is worth in speed, by the engine's cost table.

Seconds of a round are those of a step with the rows that are verified (`engine.step_cost`), and
those of drafting and of taking in what was committed (`engine.costs`). Drafts may be cut to a
bound; the best bound counts, so that no draft at all, a speedup of 1, is the least.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.autospec.scores.replay import ReplayCosts
from paceline.core import SpeculationStats
from paceline.engine.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class RoundSeconds:
    """Prices the rounds of a drafter with `requests` requests at once.

    longest    the longest draft of the drafter
    proposed   the longest that it makes when it is asked to propose one
    """

    step: StepCost
    drafting: ReplayCosts
    requests: int
    longest: int
    proposed: int

    def best(self, stats: SpeculationStats, asked: int) -> tuple[float, int]:
        """Return the best speedup of all bounds of the draft length, and that bound: 1 and 0 where
        no draft pays. `asked` of the rounds asked the drafter to propose."""
        bounds = range(1, self.longest + 1)
        speed, bound = max((self.speedup(stats, asked, b), -b) for b in (0, *bounds))
        return speed, -bound

    def speedup(self, stats: SpeculationStats, asked: int, bound: int) -> float:
        """Return tokens per second over those without drafts, for rounds whose drafts are cut to
        `bound` tokens; 1 where that is none.

        The rounds are those of uncut drafts; what a cut leaves out is not drafted again.
        """
        rounds = stats.rounds
        if not (rounds and bound):
            return 1.0
        accepted = sum(count for _, count in stats.by_position()[:bound])
        tokens = 1 + accepted / rounds
        seconds = self._verifying(stats, bound) + self._drafting(asked / rounds, tokens, bound)
        return tokens * self._step(self.requests) / seconds

    def _verifying(self, stats: SpeculationStats, bound: int) -> float:
        """Return the seconds of a step. The drafts of the other requests have the mean length."""
        lengths = stats.rounds_by_draft_length
        mean = sum(count * min(k, bound) for k, count in enumerate(lengths)) / stats.rounds
        others = (self.requests - 1) * (1 + mean)
        seconds = sum(
            count * self._step(1 + min(k, bound) + others) for k, count in enumerate(lengths)
        )
        return seconds / stats.rounds

    def _drafting(self, asked: float, tokens: float, bound: int) -> float:
        """Return the seconds of drafting in a round; a share `asked` of the requests proposes."""
        price, looking_up = self.drafting.price, self.drafting.looking_up
        wanted = [min(bound, self.proposed)] * max(1, round(asked * self.requests))
        share = min(1.0, asked * self.requests)
        seconds = share * price.draft_seconds(wanted)
        return seconds + price.observe_seconds(tokens * self.requests) + looking_up(self.requests)

    def _step(self, rows: float) -> float:
        return self.step(max(1, round(rows)), self.requests)
