"""Attention over many texts at once against the mask of everything, and what must not leak."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from paceline.models.dflash.config import read_dflash_config
from paceline.models.dflash.module import DFlashModule
from paceline.training import attention as attention_module
from paceline.training import flex_attention as flex_module
from paceline.training import form as form_module
from paceline.training.attention import PackedAttention, attention_over
from paceline.training.flex_attention import TILE, FlexAttention
from paceline.training.packs import Pack
from paceline.training.padded_attention import PaddedAttention
from paceline.training.run import prepare
from paceline.training.workers import Workers
from tests.models.dflash.tiny import config_json, random_drafter_weights
from tests.training.attention_twin import (
    KINDS,
    MASK,
    dense,
    flex_by_tiles,
    rows,
    shown_by_tiles,
    small_pack,
)
from tests.training.runs import config
from tests.training.twins import SIZE

FORMS = [PackedAttention, PaddedAttention, flex_by_tiles]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_pack_sees_what_the_mask_of_everything_shows(kind, form, monkeypatch):
    monkeypatch.setattr(attention_module, "GROUP", 7)  # several groups, the last one smaller
    pack = small_pack()
    q, k, v = rows(pack, 4, 0, False), rows(pack, 2, 1, True), rows(pack, 2, 2, True)
    outer = torch.randn(q.shape, generator=torch.Generator().manual_seed(9))
    found = []
    for mixed in (form(pack)(kind, q, k, v), dense(pack, kind, q, k, v)):
        grads = torch.autograd.grad((mixed * outer).sum(), (q, k, v))
        found.append((mixed.detach(), *grads))
    for ours, twin in zip(*found, strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS[2:], ids=str)
def test_a_pack_needs_no_more_than_a_window_of_context(kind, form, monkeypatch):
    """Texts that are cut before the window of their first anchor: the same values, and the same
    gradient for the tokens that are left."""
    monkeypatch.setattr(attention_module, "GROUP", 7)
    whole, cut = small_pack(prompt=13), small_pack(prompt=13, window=kind.window)
    lengths = [end - start for start, end in cut.context]
    assert lengths != [end - start for start, end in whole.context]
    kept = torch.cat(
        [
            torch.arange(end - length, end)
            for (_, end), length in zip(whole.context, lengths, strict=True)
        ]
    )
    assert torch.equal(whole.tokens[kept], cut.tokens)
    assert torch.equal(whole.features[kept], cut.features)
    kept = torch.cat([kept, torch.arange(len(whole.tokens), len(whole.tokens) + cut.ids.numel())])
    q, k, v = rows(whole, 4, 0, False), rows(whole, 2, 1, True), rows(whole, 2, 2, True)
    ours = form(cut)(kind, q, k[kept], v[kept])
    twin = dense(whole, kind, q, k, v)
    torch.testing.assert_close(ours, twin, rtol=1e-4, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours.square().sum(), (q, k, v)),
        torch.autograd.grad(twin.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("setting", "form"),
    [("auto", PackedAttention), ("padded", PaddedAttention), ("flex", FlexAttention)],
)
def test_a_run_has_the_form_of_its_setting(setting, form, target, trainset, tmp_path, monkeypatch):
    settings = config(target, trainset, tmp_path, steps=1)
    object.__setattr__(settings, "attention", setting)  # flex is refused on a CPU
    made = []

    def noted(*given):
        made.append(attention_over(*given))
        return made[-1]

    monkeypatch.setattr(form_module, "attention_over", noted)
    trainer = prepare(settings, Workers("cpu"))
    no_backward = pytest.raises(Exception, match="does not support backward on CPU")
    with no_backward if setting == "flex" else nullcontext():
        trainer.take_step()
    assert {type(attend) for attend in made} == {form}


def test_padding_counts_only_where_a_form_pads(target, trainset, tmp_path, monkeypatch):
    """A group of texts takes as many tokens of its limit as the form has rows of context."""
    monkeypatch.setattr(flex_module, "compiled", lambda: shown_by_tiles)  # it learns on a CPU
    packs: dict[str, list[Pack]] = {"auto": [], "padded": [], "flex": []}
    for setting, made in packs.items():
        settings = config(
            target, trainset, tmp_path, steps=1, texts=8, micro=8, micro_tokens=110, anchors=3
        )
        object.__setattr__(settings, "attention", setting)  # flex is refused on a CPU

        def noted(pack, form, made=made):
            made.append(pack)
            return attention_over(pack, form)

        monkeypatch.setattr(form_module, "attention_over", noted)
        trainer = prepare(settings, Workers("cpu"))
        trainer.take_step()
    side_by_side = [len(pack.context) * longest(pack) for pack in packs["padded"]]
    behind = [len(pack.tokens) for pack in packs["flex"]]
    assert max(side_by_side) <= 110 and max(behind) <= 110
    assert [len(pack.tokens) for pack in packs["auto"]] == behind
    assert any(len(pack.context) * longest(pack) > 110 for pack in packs["flex"]), "none is padded"
    for pack in packs["flex"]:  # what the limit counts is what there is, but for a part of a tile
        flex = FlexAttention(pack, shown_by_tiles)
        assert 0 <= flex._first_slot - len(pack.tokens) < TILE


def longest(pack: Pack) -> int:
    return max(end - start for start, end in pack.context)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_on_cuda_the_padded_form_and_its_gradient_are_the_twins(kind):
    pack = small_pack().to("cuda")
    q, k, v = (
        rows(pack, heads, seed, keys).detach().cuda().requires_grad_()
        for heads, seed, keys in ((4, 0, False), (2, 1, True), (2, 2, True))
    )
    found = []
    for mixed in (PaddedAttention(pack)(kind, q, k, v), dense(pack, kind, q, k, v)):
        grads = torch.autograd.grad(mixed.square().sum(), (q, k, v))
        found.append((mixed.detach(), *grads))
    for ours, twin in zip(*found, strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-2, atol=1e-2)


def drafter(**options) -> DFlashModule:
    config = read_dflash_config(config_json(**{"layers": 2, "block": SIZE, **options}))
    module = DFlashModule(config)
    module.load_state_dict(random_drafter_weights(config))
    return module.eval()


def hidden(module: DFlashModule, pack: Pack, embedded: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return module.run(pack.features, pack.tokens, embedded, pack.anchors, PackedAttention(pack))


@pytest.mark.parametrize("options", [{}, {"second": True}, {"sliding": "sf", "window": 7}], ids=str)
def test_a_pack_gives_each_block_what_it_gets_alone(options):
    module = drafter(**options)
    pack = small_pack(module.config.feature_size)
    embedded = torch.randn(*pack.ids.shape, 64, generator=torch.Generator().manual_seed(4))
    together = hidden(module, pack, embedded)
    for (start, end), (first, last) in zip(pack.context, pack.blocks, strict=True):
        with torch.no_grad():
            alone = module(pack.features[start:end], embedded[first:last], pack.anchors[first:last])
        torch.testing.assert_close(together[first:last], alone, rtol=1e-4, atol=1e-4)


def changed(module: DFlashModule, change) -> torch.Tensor:
    """Which blocks' hidden states move when `change(features, embedded, pack)` was done."""
    pack = small_pack(module.config.feature_size)
    embedded = torch.randn(*pack.ids.shape, 64, generator=torch.Generator().manual_seed(4))
    before = hidden(module, pack, embedded)
    change(pack.features, embedded, pack)
    return (hidden(module, pack, embedded) != before).flatten(1).any(1)


@pytest.mark.parametrize("block", [0, 11, 30])
def test_no_feature_at_or_behind_the_anchor_reaches_a_block(block):
    def later(features, embedded, pack):
        text = next(i for i, (first, last) in enumerate(pack.blocks) if first <= block < last)
        start, end = pack.context[text]
        features[start + int(pack.anchors[block]) : end] += 1
        for other, (first, last) in enumerate(pack.context):
            if other != text:  # nor does any other text
                features[first:last] += 1

    assert not changed(drafter(), later)[block]


@pytest.mark.parametrize("block", [1, 11, 30])
def test_the_feature_before_the_anchor_does_reach_it(block):
    def earlier(features, embedded, pack):
        text = next(i for i, (first, last) in enumerate(pack.blocks) if first <= block < last)
        features[pack.context[text][0] + int(pack.anchors[block]) - 1] += 1

    assert changed(drafter(), earlier)[block]


def test_the_anchor_token_reaches_its_block_and_no_other():
    def anchor(features, embedded, pack):
        embedded[7, 0] += 1

    assert changed(drafter(), anchor).nonzero().flatten().tolist() == [7]


def test_labels_are_not_in_what_the_drafter_reads():
    pack = small_pack()
    assert (pack.ids[:, 1:] == MASK).all() and not (pack.labels == MASK).any()


def test_the_check_finds_a_leak(monkeypatch):
    """The same change is seen where a block may look at its own anchor's feature."""
    whole = attention_module.PackedAttention._mask

    def leaky(self, kind, group, dtype):
        later = (group.anchors + 1).clamp(max=int(group.anchors[-1]))
        return whole(self, kind, replace(group, anchors=later), dtype)

    monkeypatch.setattr(attention_module.PackedAttention, "_mask", leaky)

    def later(features, embedded, pack):
        features[pack.context[0][0] + int(pack.anchors[3]) :] += 1

    assert changed(drafter(), later)[3]
