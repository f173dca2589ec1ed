"""Small parts of a run alone: no model is loaded, and nothing is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from paceline.models.any_target import TargetShape
from paceline.models.dflash.config import read_dflash_config
from paceline.training.config import TrainConfig
from paceline.training.cost import StepCosts, layer_weights, target_operations
from paceline.training.evaluation import packs_of
from paceline.training.losses import CHUNK_BYTES, Head, decay_of, likeliest
from paceline.training.optimizers import Optimizers
from paceline.training.packs import Pick, make_pack, random_for, side_by_side
from paceline.training.seen import Soft
from paceline.training.target import Seen, TrainingTarget, likely_tokens
from tests.engine.tiny import tiny_config
from tests.models.dflash.tiny import config_json
from tests.training.runs import SMALL, STEP
from tests.training.twins import SIZE, random_text

# -- packs, head, target ---------------------------------------------------------------------------


def test_a_pack_moves_with_all_of_its_tensors():
    pick = Pick(random_text(20, 4, 256), torch.tensor([5, 9]))
    soft = Soft(torch.zeros(2, SIZE - 1, 1, dtype=torch.int64), torch.ones(2, SIZE - 1, 1))
    pack = replace(make_pack([pick], [Seen(torch.ones(20, 8))], SIZE, 250), soft=soft)
    assert pack.to("cpu") is pack
    moved = pack.to("meta")
    tensors = ("features", "tokens", "anchors", "ids", "labels", "counts", "before")
    assert all(getattr(moved, name).is_meta for name in tensors)
    assert moved.soft is not None and moved.soft.rows.is_meta and moved.context == pack.context
    assert replace(pack, soft=None).to("meta").soft is None


def test_packs_of_an_evaluation_hold_a_few_texts_each():
    texts = [random_text(40, 5, 256, number) for number in range(5)]

    def ones(group):
        return [Seen(torch.ones(len(text), 8)) for text in group]

    packs = list(packs_of(texts, 4, ones, SIZE, 250, None, 2, None, False))
    assert [len(pack.blocks) for pack in packs] == [2, 2, 1]
    for pack in packs:
        for first, last in pack.blocks:
            steps = pack.anchors[first:last].diff()
            assert last - first == 4 and bool((steps == 1).all())


@pytest.mark.parametrize(
    ("tokens", "window", "padded", "groups"),
    [
        (None, None, True, [[10, 12, 30], [31, 90, 200]]),
        (90, None, True, [[10, 12, 30], [31], [90], [200]]),
        (64, None, True, [[10, 12], [30, 31], [90], [200]]),
        (1, None, True, [[10], [12], [30], [31], [90], [200]]),
        (89, 31, True, [[10, 12], [30, 31], [90, 200]]),
        (90, 31, True, [[10, 12, 30], [31, 90, 200]]),
        (None, None, False, [[10, 12, 30], [31, 90, 200]]),
        (121, None, False, [[10, 12, 30], [31, 90], [200]]),
        (120, None, False, [[10, 12, 30], [31], [90], [200]]),
        (51, None, False, [[10, 12], [30], [31], [90], [200]]),
        (1, None, False, [[10], [12], [30], [31], [90], [200]]),
        (89, 31, False, [[10, 12, 30], [31, 90], [200]]),
        (90, 31, False, [[10, 12, 30], [31, 90, 200]]),
    ],
)
def test_texts_go_together_as_far_as_their_context_allows(
    tokens: int | None, window: int | None, padded: bool, groups: list[list[int]]
) -> None:
    """Each text has one anchor, behind so many tokens."""
    picks = [Pick(random_text(n + 9, 4, 256), torch.tensor([n])) for n in (10, 12, 30, 31, 90, 200)]
    parts = side_by_side(picks, 3, tokens, window, padded)
    assert [[pick.seen for pick in part] for part in parts] == groups


def test_the_likeliest_tokens_do_not_depend_on_chunks(monkeypatch):
    config = read_dflash_config(config_json())
    hidden, weight = torch.randn(7, SIZE - 1, 64), torch.randn(30, 64)
    head = Head.of(config, weight, torch.arange(0, 60, 2))
    whole = likeliest(hidden, head, 3)
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * (SIZE - 1) * 30 * 2)
    assert torch.equal(likeliest(hidden, head, 3), whole)
    assert torch.equal(whole[..., 0], (hidden @ weight.T).argmax(-1))
    assert head.row_of[58] == 29 and head.row_of[59] == -1


def test_likely_tokens_keep_their_share_of_the_whole_distribution():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    tokens, shares = likely_tokens(logits, 2)
    assert tokens.tolist() == [[1, 2]]
    assert torch.allclose(shares.float(), logits.softmax(-1)[:, [1, 2]], atol=1e-3)


def test_what_the_target_would_say_lies_one_place_before():
    likely = torch.arange(5, dtype=torch.int32)[:, None]
    seen = Seen(torch.ones(5, 4), likely, torch.ones(5, 1, dtype=torch.float16))
    tokens, shares = seen.behind(torch.tensor([1, 3]), 3)
    assert tokens[..., 0].tolist() == [[1, 2, 3], [3, 4, 4]]  # the end is repeated, and not counted
    assert shares.shape == (2, 3, 1)
    assert seen.bytes == 5 * 4 * 4 + 5 * 4 + 5 * 2


def test_what_no_block_sees_is_left_out():
    text = random_text(40, 20, 256)
    likely = torch.arange(40, dtype=torch.int32)[:, None]
    seen = Seen(torch.arange(40.0)[:, None], likely, torch.ones(40, 1, dtype=torch.float16))
    assert [text.needed(window) for window in (None, 100, 21, 6, 1)] == [0, 0, 0, 15, 20]
    cut = seen.since(text.needed(6))
    assert cut.first == 15 and cut.bytes == seen.bytes * 25 // 40
    assert torch.equal(cut.between(16, 30), seen.between(16, 30))
    anchors = torch.tensor([20, 38])
    for one, other in zip(cut.behind(anchors, 3), seen.behind(anchors, 3), strict=True):
        assert torch.equal(one, other)
    assert cut.since(3) is cut


class CountedTarget(TrainingTarget):
    """A target whose features take 4 bytes a token."""

    def _compute(self, texts):
        return [Seen(torch.zeros(len(text), 1)) for text in texts]


def test_preferred_texts_keep_their_room():
    short, long = random_text(10, 2, 256, 0), random_text(20, 2, 256, 1)
    target = CountedTarget(TargetShape.of(tiny_config()), [0], budget=4 * 20)
    target.prefer([long])
    target.read(short)  # fits the budget, which is reserved
    target.read(long)
    target.read(long)
    target.read(short)
    assert target.computed_tokens == 10 + 20 + 10
    assert target.read(long).features.shape == (20, 1)


def test_with_a_window_more_texts_fit_into_the_memory():
    texts = [random_text(30, 20, 256, number) for number in range(3)]
    target = CountedTarget(TargetShape.of(tiny_config()), [0], budget=4 * 3 * 15)
    target.window = 6
    for _ in range(2):
        views = target.read_all(texts)
        assert [(seen.first, len(seen.features)) for seen in views] == [(15, 15)] * 3
    assert target.computed_tokens == 3 * 30


def test_what_is_reserved_for_a_text_is_what_its_blocks_see():
    preferred, other = (random_text(30, 20, 256, number) for number in range(2))
    target = CountedTarget(TargetShape.of(tiny_config()), [0], budget=4 * 30)
    target.window = 6
    target.prefer([preferred])
    for text in (other, preferred, other, preferred):
        target.read(text)
    assert target.computed_tokens == 2 * 30  # both fit: 15 tokens each


# -- settings, optimizers, costs -------------------------------------------------------------------


def test_muon_takes_matrices_and_adamw_the_rest():
    module = nn.Module()
    module.matrix = nn.Parameter(torch.ones(4, 4))
    module.codebook = nn.Parameter(torch.ones(4, 4))
    module.norm = nn.Parameter(torch.ones(4))
    optimizers = Optimizers(module, TrainConfig(**SMALL, matrix_lr=0.1, lr=0.2))
    muon, adamw = optimizers._parts
    assert [len(group["params"]) for group in muon.param_groups] == [1]
    assert [len(group["params"]) for group in adamw.param_groups] == [2]
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(0.5)
    assert muon.param_groups[0]["lr"] == 0.05 and adamw.param_groups[0]["lr"] == 0.1
    assert all(parameter.grad is None for parameter in module.parameters())
    again = Optimizers(module, TrainConfig(**SMALL, matrix_lr=0.1, lr=0.2))
    again.load(optimizers.state())
    assert str(again.state()[1]["state"]) == str(optimizers.state()[1]["state"])


def test_sums_of_the_log_are_means_of_steps_and_totals_of_the_run():
    costs = StepCosts(all_slots=100.0, all_seconds=3600.0)
    for loss in (1.0, 3.0):
        costs.add(2.0, **STEP | {"loss": loss})
    numbers = costs.numbers()
    assert numbers["loss"] == 2.0 and numbers["seconds_per_step"] == 2.0
    assert numbers["slots_per_second"] == 4.0 and numbers["blocks_per_second"] == 2.0
    assert numbers["slots"] == 116.0 and numbers["hours"] == pytest.approx(3604 / 3600)


def test_phases_add_up_time_and_operations():
    costs = StepCosts()
    costs.add(2.0, **STEP)
    assert "peak_share/all" not in costs.numbers()
    for _ in range(2):
        before = costs.phases["data"]
        with costs.phase("data"):
            pass
        assert costs.phases["data"] > before
    shape = TargetShape.of(tiny_config())
    assert target_operations(shape, 2) == 4.0 * shape.num_layers * layer_weights(shape)


def test_decays_are_the_published_ones_or_half_a_block():
    assert [decay_of(size) for size in (8, 10, 16, 6, 20)] == [4.0, 5.0, 7.0, 3.0, 10.0]


def test_a_draw_depends_on_seed_epoch_and_text():
    draws = {
        tuple(random_for(*key).integers(1000, size=4))
        for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    }
    assert len(draws) == 4
    assert random_for(0, 1, 2).integers(1000) == random_for(0, 1, 2).integers(1000)
