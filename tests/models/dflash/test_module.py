"""The training form against the authors' own package, block by block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.models.dflash.config import read_dflash_config
from paceline.models.dflash.module import DFlashModule
from paceline.models.json_files import read_json
from tests.models.dflash.tiny import authors_model, write_drafter

SHAPES = [
    {"layers": 1, "block": 4},
    {"layers": 2, "block": 16, "taps": (2, 0), "target_layers": 4},
    {"layers": 3, "block": 8, "sliding": "ssf", "window": 7},
    {"layers": 2, "block": 6, "sliding": "ss", "window": 9, "is_causal": False},
    {"layers": 2, "block": 7, "is_causal": True},
    {"layers": 5, "block": 10, "attention_bias": True, "head_dim": 32},
    {"layers": 6, "block": 5, "second": True},
    {"layers": 3, "block": 8, "second": True, "sliding": "sfs", "window": 11},
]


def own_module(folder: Path) -> DFlashModule:
    module = DFlashModule(read_dflash_config(read_json(folder / "config.json")))
    module.load_state_dict(load_file(folder / "model.safetensors"))
    return module.eval()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_every_block_of_a_sequence_gives_the_authors_hidden_states(shape, tmp_path):
    folder = write_drafter(tmp_path / "drafter", **shape)
    module, theirs = own_module(folder), authors_model(folder)
    block = module.config.block_size
    features = torch.randn(40, module.config.feature_size)
    anchors = torch.tensor([1, 5, 17, 40])
    embedded = torch.randn(len(anchors), block, 64)
    ours = module(features, embedded, anchors)
    for index, anchor in enumerate(anchors.tolist()):
        expected = theirs(
            target_hidden=features[None, :anchor],
            noise_embedding=embedded[index][None],
            position_ids=torch.arange(anchor + block)[None],
        )
        torch.testing.assert_close(ours[index], expected[0], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_block_does_not_see_its_own_anchors_feature(tmp_path):
    module = own_module(write_drafter(tmp_path / "drafter"))
    features, embedded = torch.randn(12, module.config.feature_size), torch.randn(1, 6, 64)
    before = module(features, embedded, torch.tensor([8]))
    features[8:] += 1
    assert torch.equal(module(features, embedded, torch.tensor([8])), before)
    features[7] += 1
    assert not torch.allclose(module(features, embedded, torch.tensor([8])), before)
