"""Gradients have the same bits every time, at sizes that torch computes with several threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from paceline.models.dflash.config import read_dflash_config
from paceline.models.dflash.module import DFlashModule
from paceline.training.form import TrainingForm
from paceline.training.losses import Head, Objective
from paceline.training.packs import Pack, Pick, draw_anchors, make_pack
from paceline.training.seen import Seen, Soft
from tests.models.dflash.tiny import SECOND, config_json
from tests.training.twins import SIZE, random_text

BLOCKS, TEXTS = 600, 4
PARALLEL = 32768  # elements from which torch adds gradients of an index with several threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def large_pack(width: int) -> Pack:
    texts = [random_text(200, 4, 256, number) for number in range(TEXTS)]
    picks = [Pick(text, draw_anchors(text, BLOCKS // TEXTS, 0, 0)) for text in texts]
    generator = torch.Generator().manual_seed(5)
    parts = [Seen(torch.randn(len(text), width, generator=generator)) for text in texts]
    pack = make_pack(picks, parts, SIZE, 250)
    rows = torch.randint(0, 256, (*pack.labels.shape, 4), generator=generator)
    soft = Soft(rows, torch.full(rows.shape, 0.2))
    return replace(pack, soft=soft)


def gradients(form: TrainingForm, pack: Pack) -> dict[str, torch.Tensor]:
    form.zero_grad()
    form(pack).loss.backward()
    return {name: p.grad.clone() for name, p in form.named_parameters() if p.grad is not None}


@pytest.mark.usefixtures("two_threads")
def test_gradients_of_every_weight_are_equal_bit_for_bit() -> None:
    """The selector looks up as many numbers per slot as torch spreads over threads."""
    torch.manual_seed(0)
    shape = read_dflash_config(config_json(second=True))
    assert BLOCKS * SECOND["selector_top_k"] * SECOND["selector_rank"] > PARALLEL
    drafter = DFlashModule(shape)
    head = Head.of(shape, torch.randn(256, 64), torch.arange(256))
    objective = Objective({"ce": 0.5, "kl": 0.5})
    form = TrainingForm(drafter, torch.randn(256, 64), head, objective, autocast=False)
    pack = large_pack(shape.feature_size)
    first = gradients(form, pack)
    assert len(first) == len(list(drafter.parameters()))
    for _ in range(6):
        again = gradients(form, pack)
        assert not [name for name in first if not torch.equal(first[name], again[name])]
