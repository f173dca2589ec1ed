"""The rules at the edges of their arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from paceline.engine.sampler import Noise
from paceline.engine.verify import make_verifier

P = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
Q = torch.tensor([0.2, 0.2, 0.6, 0.0], dtype=torch.float64)
NEVER = 3  # the token that neither the target nor the drafter gives any probability


class SameRows:
    """The same law at every row."""

    def __init__(self, seed: int) -> None:
        self.noise = Noise(seed, 0, 0)

    def token(self, row: int) -> int:
        raise AssertionError("a rule that knows q does not ask for the target's own token")

    def probs(self, row: int) -> torch.Tensor:
        return P


def verify(rule: str, draft: Sequence[int], q: torch.Tensor, seed: int = 1):
    return make_verifier(rule).verify(SameRows(seed), draft, [q] * len(draft))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_token_the_target_cannot_say_never_stands(rule: str, before: int) -> None:
    """Also where the drafter's own q of it is 0, and 0/0 is no number."""
    for seed in range(50):
        verdict = verify(rule, [0] * before + [NEVER, 0], Q, seed)
        assert verdict.accepted <= before
        assert verdict.next_token != NEVER


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_token_the_target_can_say_stands_where_q_is_rounded_to_nothing(rule: str) -> None:
    q = torch.tensor([0.0, 0.4, 0.6, 0.0], dtype=torch.float64)
    assert all(verify(rule, [0, 0], q, seed).accepted == 2 for seed in range(50))
