"""Scores drafters on answers of the target, in this process: it loads the target where it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.autospec.loop.change import Measured
from paceline.core import InvalidRequest
from paceline.drafters.corpus_folder import CorpusAnswer


@dataclass(frozen=True, slots=True)
class ReplayScorer:
    """Replays answers with each drafter for a `model`, as `serve` takes it."""

    model: str

    def __call__(
        self, specs: Mapping[str, str], answers: Sequence[CorpusAnswer]
    ) -> Mapping[str, Measured]:
        """Return tokens per round by name. Raises InvalidRequest and ModelError."""
        from paceline.autospec.scores.candidates import CandidateDrafters
        from paceline.autospec.scores.run import score

        named = [f"{name}={spec}" for name, spec in specs.items()]
        matrix = score(CandidateDrafters.load(self.model, named, with_costs=False), answers)
        scores = {}
        for name in specs:
            cell = matrix.cell(name)
            found = cell.tokens_per_round
            if found is None or found.low is None or found.high is None:
                raise InvalidRequest("answers", len(answers), "two answers or more to score on")
            scores[name] = found.value, max(1.0, found.low), found.high, cell.rounds
        return scores
