"""Targets that are loaded layer by layer have the tensors of those that are loaded whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Qwen3MoeForCausalLM

from paceline.core import ModelError
from paceline.models.any_target import read_target
from paceline.training.causal_model import decoder_layers, load_restored
from tests.training.foreign import FAMILIES, save_foreign
from tests.training.test_quantised_targets import SERVED, checkpoints

QUICK = ("qwen3_moe", "qwen3_5", "gemma3")
KINDS = [
    (family, None) if family in QUICK else pytest.param(family, None, marks=pytest.mark.slow)
    for family in FAMILIES
]
KINDS += [("qwen3_moe", "fp8"), ("gpt_oss", "mxfp4"), ("qwen3_moe", "int4"), (SERVED, "int8")]


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_layers_alone_are_those_of_the_whole_model(family: str, kind: str | None, tmp_path: Path):
    if kind is None:
        (folder := tmp_path / "plain").mkdir()
        save_foreign(folder, family)
    else:
        folder = checkpoints(tmp_path, kind, family)[1]
    found = read_target(str(folder))
    whole = load_restored(found, torch.bfloat16, range(found.shape.num_layers))
    layers = decoder_layers(whole, found)
    tensors = tensors_of(whole)
    prefix = next(name for name, module in whole.named_modules() if module is layers) + "."
    for index, layer in enumerate(layers):
        part = load_restored(found, torch.bfloat16, (index,))
        alone = tensors_of(decoder_layers(part, found)[index])
        assert alone.keys() == tensors_of(layer).keys()
        for name, tensor in alone.items():
            assert torch.equal(tensors[f"{prefix}{index}.{name}"], tensor), name
    rest = tensors_of(load_restored(found, torch.bfloat16, ()))
    assert rest.keys() == {name for name in tensors if not name.startswith(prefix)}
    for name, tensor in rest.items():
        assert torch.equal(tensors[name], tensor), name


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters and buffers, those that no checkpoint holds among them."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def test_layers_that_share_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in Zamba2: read one by one, each would have a copy, and all but one lack their tensors."""
    save_foreign(tmp_path, "qwen3_moe")
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | {"tie_word_embeddings": True}))
    found = read_target(str(tmp_path))
    tied = {f"model.layers.{i}.mlp.gate.weight": "model.layers.0.mlp.gate.weight" for i in (2, 3)}
    monkeypatch.setattr(Qwen3MoeForCausalLM, "_tied_weights_keys", tied)
    with pytest.raises(
        ModelError, match=r"Qwen3MoeForCausalLM: layers share model\.layers\.0\.mlp"
    ):
        load_restored(found, torch.bfloat16, (1,))
