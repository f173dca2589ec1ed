"""Acceptance by draft position, from answers, and what it says of every draft length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engines.answers import AnsweredRound, EngineAnswer
from paceline.engines.tune.steps import Numbers, bursts
from paceline.evaluate.numbers import context_bin


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many rounds of each prompt came to a draft position, and accepted it: [prompts, length].

    A shorter draft of a drafter is the start of a longer one. So the rounds with the longest drafts
    tell the acceptance length of every shorter draft length.
    """

    reached: Numbers
    accepted: Numbers

    @classmethod
    def of(cls, rounds: Sequence[Iterable[AnsweredRound]], length: int) -> Acceptance:
        """Count rounds by prompt, up to `length` draft tokens."""
        reached, accepted = np.zeros((2, len(rounds), length))
        for index, of_prompt in enumerate(rounds):
            for each in of_prompt:
                reached[index, : min(each.accepted + 1, each.drafted, length)] += 1
                accepted[index, : min(each.accepted, length)] += 1
        return cls(reached, accepted)

    @property
    def rounds(self) -> int:
        """Rounds that drafted something."""
        return int(self.reached[:, :1].sum())

    @property
    def survival(self) -> Numbers:
        """The share of rounds that accept at least 1, 2, … draft tokens: [length]."""
        return self._survival(self.reached.sum(0), self.accepted.sum(0))

    def lengths(self, draws: int) -> Numbers:
        """Return the acceptance length (incl. bonus) of drafts of 0, 1, … tokens: [draws, length +
        1]. Every draw takes prompts anew, because the rounds of one answer hang together."""
        prompts = len(self.reached)
        drawn = np.random.default_rng(1).integers(0, prompts, (draws, prompts))
        survival = self._survival(self.reached[drawn].sum(1), self.accepted[drawn].sum(1))
        lengths: Numbers = np.hstack([np.ones((draws, 1)), 1 + survival.cumsum(1)])
        return lengths

    @property
    def mean_lengths(self) -> Numbers:
        """The acceptance length (incl. bonus) of drafts of 0, 1, … tokens: [length + 1]."""
        lengths: Numbers = np.concatenate([[1.0], 1 + self.survival.cumsum()])
        return lengths

    @staticmethod
    def _survival(reached: Numbers, accepted: Numbers) -> Numbers:
        shares: Numbers = np.cumprod(accepted / np.maximum(reached, 1), axis=-1, dtype=np.float64)
        return shares


def rounds_of(answer: EngineAnswer, draft_len: int) -> list[AnsweredRound]:
    """Return the rounds of an answer. Where the engine does not tell, every arrival after the first
    is a round of `draft_len` draft tokens. The last one ends with the answer: what follows the end
    was not judged, so it counts as a round of the tokens that it gave."""
    if answer.rounds is not None:
        return [each for each in answer.rounds if each.drafted]
    rounds, position, arrived = [], 0, list(bursts(answer))
    for index, (_, tokens) in enumerate(arrived):
        if index and tokens <= draft_len + 1:
            is_last = index == len(arrived) - 1
            drafted = tokens - 1 if is_last else draft_len
            rounds.append(AnsweredRound(position, drafted, tokens - 1))
        position += tokens
    return [each for each in rounds if each.drafted]


def by_context(answers: Sequence[EngineAnswer], draft_len: int) -> dict[int, Acceptance]:
    """Return the acceptance of rounds by the tokens before them: by the lower edges of the bins
    that occur."""
    bins: dict[int, list[list[AnsweredRound]]] = {}
    for answer in answers:
        own: dict[int, list[AnsweredRound]] = {}
        for each in rounds_of(answer, draft_len):
            edge = context_bin((answer.prompt_tokens or 0) + each.position)
            own.setdefault(edge, []).append(each)
        for edge, rounds in own.items():
            bins.setdefault(edge, []).append(rounds)
    return {edge: Acceptance.of(bins[edge], draft_len) for edge in sorted(bins)}
