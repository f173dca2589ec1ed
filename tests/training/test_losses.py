"""Losses, masks and weights against loops over single slots, gradients included."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from paceline.models.dflash.config import read_dflash_config
from paceline.training import losses as losses_module
from paceline.training.config import OBJECTIVES, SOFT
from paceline.training.losses import (
    Head,
    Objective,
    block_loss,
    head_loss,
    paying,
    position_weights,
    soft_loss,
)
from paceline.training.seen import Soft
from tests.models.dflash.tiny import config_json
from tests.training.twins import slow_expected, slow_objective, slow_weights

COSTS = (1.04, 1.08, 1.1, 1.4, 1.42)  # of rounds that draft so many tokens
SLOTWISE = ("ce", "kl", "tv", "nla", "lk_hybrid")
BLOCKS, SLOTS, HIDDEN, VOCABULARY, ROWS = 5, 5, 16, 40, 30
CONFIG = read_dflash_config(config_json())


class Case:
    """Random hidden states, a head that lacks some tokens, and a target's distribution."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randperm(VOCABULARY, generator=generator)[:ROWS].sort().values
        weight = torch.randn(ROWS, HIDDEN, generator=generator)
        self.head = Head.of(CONFIG, weight, self.ids)
        self.hidden = torch.randn(BLOCKS, SLOTS, HIDDEN, generator=generator)
        self.tokens = torch.randint(VOCABULARY, (BLOCKS, SLOTS), generator=generator)
        self.counts = torch.arange(SLOTS) < torch.tensor([5, 5, 3, 1, 4])[:, None]
        logits = 2 * torch.randn(BLOCKS, SLOTS, VOCABULARY, generator=generator)
        top = logits.softmax(-1).topk(6, dim=-1)
        self.likely, self.shares = top.indices, top.values
        self.soft = Soft(self.head.row_of[self.likely], self.shares)

    @property
    def labels(self) -> torch.Tensor:
        return self.head.row_of[self.tokens]

    def fast(self, hidden: torch.Tensor, objective: Objective) -> torch.Tensor:
        soft = self.soft if set(objective.mix) & set(SOFT) else None
        given = self.head, self.labels, self.counts, soft, objective
        speedup = 1.0
        while True:  # each step of a run begins with the speedup of the step before
            out = head_loss(hidden, *given, speedup=speedup)
            if out.speed is None or speedup == float(out.speed[0] / out.speed[1]):
                return out.loss
            speedup = float(out.speed[0] / out.speed[1])

    def slow(self, objective: Objective) -> float:
        total = objective.mix.get("expected_speedup", 0.0) * -self._accepted_at_best_speed()
        total += sum(
            share * slow_expected([self._chance(block, slot, name) for slot in range(SLOTS)])
            for name, share in objective.mix.items()
            if name not in (*SLOTWISE, "expected_speedup")
            for block in range(BLOCKS)
        )
        for block in range(BLOCKS):
            losses: list[float | None] = []
            for slot in range(SLOTS):
                there = bool(self.counts[block, slot])
                label = int(self.labels[block, slot])
                losses.append(-self._q(block, slot)[max(label, 0)].log().item() if there else None)
            known = [bool(self.labels[block, slot] >= 0) for slot in range(SLOTS)]
            weights = slow_weights(objective.weights, losses, known)
            for slot in range(SLOTS):
                if self.counts[block, slot]:
                    total += weights[slot] * self._slot(block, slot, objective)
        return total

    def _accepted_at_best_speed(self) -> float:
        """Return the accepted tokens of the fastest way to give each block a length."""
        accepted = [
            [-slow_expected(chances[:length]) for length in range(SLOTS + 1)]
            for block in range(BLOCKS)
            for chances in [[self._chance(block, slot, "") for slot in range(SLOTS)]]
        ]
        fastest = (0.0, 0.0)
        for lengths in itertools.product(range(SLOTS + 1), repeat=BLOCKS):
            tokens = sum(of[length] for of, length in zip(accepted, lengths, strict=True))
            cost = sum((1.0, *COSTS)[length] for length in lengths)
            fastest = max(fastest, ((BLOCKS + tokens) / cost, tokens))
        assert 0 < fastest[1] < sum(of[-1] for of in accepted) - 0.01  # not all, and not nothing
        return fastest[1]

    def _q(self, block: int, slot: int) -> torch.Tensor:
        return (self.head.weight @ self.hidden[block, slot]).softmax(-1)

    def _p(self, block: int, slot: int) -> torch.Tensor:
        p = torch.zeros(ROWS)
        for token, share in zip(self.likely[block, slot], self.shares[block, slot], strict=True):
            row = int(self.head.row_of[token])
            if row >= 0:
                p[row] = share
        return p

    def _slot(self, block: int, slot: int, objective: Objective) -> float:
        q, p = self._q(block, slot).tolist(), self._p(block, slot).tolist()
        label = int(self.labels[block, slot])
        return sum(
            share * slow_objective(name, p, q, None if label < 0 else label)
            for name, share in objective.mix.items()
            if name in SLOTWISE
        )

    def _chance(self, block: int, slot: int, name: str) -> float:
        """The chance that a draft sampled from q is accepted."""
        q, label = self._q(block, slot), int(self.labels[block, slot])
        if not self.counts[block, slot]:
            return 0.0
        if name == "expected_matches":
            return 0.0 if label < 0 else float(q[label])
        return float(torch.minimum(self._p(block, slot), q).sum())


@pytest.mark.parametrize("weights", ["dpace", "exponential", "uniform"])
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "on_policy"])
def test_a_loss_is_the_sum_of_the_slow_twins(name, weights):
    case, objective = Case(), Objective({name: 0.7}, weights, round_costs=COSTS)
    assert float(case.fast(case.hidden, objective)) == pytest.approx(case.slow(objective), rel=1e-5)


def test_a_mix_adds_its_parts():
    case = Case(1)
    mixed = Objective({"ce": 0.1, "tv": 0.9}, "exponential")
    parts = [
        float(case.fast(case.hidden, Objective({name: 1.0}, "exponential")))
        for name in ("ce", "tv")
    ]
    assert float(case.fast(case.hidden, mixed)) == pytest.approx(0.1 * parts[0] + 0.9 * parts[1])


@pytest.mark.parametrize(
    "name", [name for name in OBJECTIVES if name not in ("lk_hybrid", "on_policy")]
)
def test_the_gradient_that_is_handed_on_is_the_slow_twins(name):
    """By finite differences, in weights that do not move with the loss."""
    case, objective = Case(2), Objective({name: 1.0}, "exponential", round_costs=COSTS)
    hidden = case.hidden.clone().requires_grad_()
    (3 * case.fast(hidden, objective)).backward()
    assert hidden.grad is not None
    whole = case.hidden
    for place in ((0, 0, 3), (2, 1, 7), (4, 3, 0)):
        values = []
        for step in (1e-2, -1e-2):
            case.hidden = whole.clone()
            case.hidden[place] += step
            values.append(case.slow(objective))
        assert float(hidden.grad[place]) == pytest.approx(
            3 * (values[0] - values[1]) / 2e-2, rel=2e-2, abs=1e-3
        )
    assert not hidden.grad[3, 1:].any()  # slots that are not there


def test_lk_mixes_the_gradients_of_kl_and_tv_by_a_share_that_is_held_still():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 1, 12, generator=generator)
    soft = Soft(torch.tensor([[[2, 5, -1]]]), torch.tensor([[[0.5, 0.3, 0.1]]]))
    grads = {}
    for name in ("kl", "tv", "lk_hybrid"):
        leaf = logits.clone().requires_grad_()
        soft_loss(name, leaf.log_softmax(-1), soft).sum().backward()
        grads[name] = leaf.grad
    tv = float(soft_loss("tv", logits.log_softmax(-1), soft))
    share = math.exp(-3 * (1 - tv))
    expected = share * grads["kl"] + (1 - share) * grads["tv"]
    torch.testing.assert_close(grads["lk_hybrid"], expected)


def test_weights_carry_no_gradient():
    loss = torch.rand(2, 4, requires_grad=True)
    counts = torch.ones(2, 4, dtype=torch.bool)
    assert not position_weights("dpace", loss, counts, counts).requires_grad


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "on_policy"])
def test_chunks_do_not_change_loss_or_gradient(name, monkeypatch):
    case, objective = Case(3), Objective({name: 1.0}, round_costs=COSTS)
    found = []
    for size in (1, 1 << 30):
        monkeypatch.setitem(losses_module.CHUNK_BYTES, "cpu", size)
        hidden = case.hidden.clone().requires_grad_()
        loss = case.fast(hidden, objective)
        loss.backward()
        found.append((float(loss.detach()), hidden.grad))
    assert found[0][0] == pytest.approx(found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_the_plain_cross_entropy_has_no_weights_and_no_slots_that_are_not_there():
    logits = torch.randn(3, 5, 20)
    labels = torch.randint(0, 20, (3, 5))
    counts = torch.ones(3, 5, dtype=torch.bool)
    labels[0, 1], counts[2, -1] = -1, False
    out = block_loss(logits, labels, counts, None, Objective({"ce": 2.0}, "dpace"))
    there = counts & (labels >= 0)
    expected = torch.nn.functional.cross_entropy(logits[there], labels[there], reduction="none")
    assert torch.allclose(out.ce[there], expected) and bool(out.ce[~there].isnan().all())


def test_a_token_that_the_head_lacks_is_never_right():
    case = Case(4)
    out = head_loss(case.hidden, case.head, case.labels, case.counts, None, Objective({"ce": 1.0}))
    assert (case.labels < 0).any()
    assert not out.right[case.labels < 0].any()


def test_slots_that_cost_more_than_they_bring_are_not_paid_for():
    reach = torch.tensor([[0.9, 0.8, 0.7], [0.3, 0.1, 0.0], [0.0, 0.0, 0.0]])
    for costs, lengths in (
        ((1.0, 1.0, 1.0), [3, 3, 3]),  # drafts for nothing: the longest
        ((1.2, 1.2, 1.2), [3, 3, 0]),  # once drafted, the rest is free
        ((1.1, 1.8, 3.0), [2, 1, 0]),
        ((2.5, 3.5, 4.5), [0, 0, 0]),  # nothing pays
    ):
        drafted, speed = paying(reach, costs, 1.0)
        assert drafted.sum(1).tolist() == lengths, costs
        assert float(speed[0]) == pytest.approx(3 + float((reach * drafted).sum()))
        assert float(speed[1]) == pytest.approx(sum((1.0, *costs)[n] for n in lengths))
    # Where all are faster, a slot has to bring more: time is worth more tokens.
    assert paying(reach, (1.1, 1.8, 3.0), 1.3)[0].sum(1).tolist() == [1, 1, 0]
    # A short block of the run's start has fewer slots than there are costs.
    assert paying(reach[:, :2], (1.0, 1.0, 1.0), 1.0)[0].tolist() == [[True, True]] * 3
