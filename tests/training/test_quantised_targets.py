"""Targets with a `quantization_config`: transformers computes them, and drafters learn."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from paceline.core import ModelError
from paceline.models.any_target import read_target
from paceline.training.run import train
from paceline.training.transformers_target import TransformersModel, TransformersTarget
from paceline.training.vllm_target import VLLMModel
from paceline.training.written_target import ShownTarget
from tests.engine.tiny import save_tiny
from tests.training.foreign import save_foreign, write_random_set
from tests.training.quantised import quantised
from tests.training.runs import config, learn_by_heart
from tests.training.twins import random_text

LAYERS = (0, 2)
TEXTS = [random_text(tokens, 5, 200, number) for number, tokens in enumerate((30, 7, 21))]
SERVED = "a family that our engine serves"
# What is stored, of which family, and how far features may be from those of the stored weights,
# relative to their norm. int8 rounds the inputs of linear layers as well, so it is not exact.
CASES = [
    ("fp8", SERVED, 1e-5),
    ("fp8", "qwen3_moe", 1e-5),
    ("mxfp4", "gpt_oss", 1e-5),
    ("int8", SERVED, 3e-2),
    ("int4", SERVED, 1e-5),
    ("int4", "qwen3_moe", 1e-5),
]


def checkpoints(folder: Path, kind: str, family: str, **changes: int) -> tuple[Path, Path, Path]:
    """Write a tiny checkpoint, its quantised copy and the weights which that stands for; `changes`
    are sizes of a family that our engine serves."""
    plain = folder / "plain"
    plain.mkdir()
    if family == SERVED:
        save_tiny(plain, num_layers=4, **changes)
        stated = json.loads((plain / "config.json").read_text())
        (plain / "config.json").write_text(json.dumps(stated | {"model_type": "qwen2"}))
    else:
        save_foreign(plain, family)
    return plain, *quantised(plain, kind, folder)


def target_of(folder: Path) -> TransformersTarget:
    found = read_target(str(folder))
    return TransformersTarget(TransformersModel(found, torch.float32, "cpu"), found, LAYERS, 0)


def features(folder: Path) -> torch.Tensor:
    return torch.cat([seen.features for seen in target_of(folder).read_all(TEXTS)])


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(("kind", "family", "near"), CASES)
def test_features_are_those_of_the_weights_that_the_checkpoint_stands_for(
    kind, family, near, tmp_path
):
    plain, small, dense = checkpoints(tmp_path, kind, family)
    ours, exact = features(small), features(dense)
    assert distance(ours, exact) < near
    assert distance(features(plain), exact) > 3e-3, "the plain weights have others"
    model = transformers.AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
    with torch.no_grad():
        states = [model(text.ids[None], output_hidden_states=True).hidden_states for text in TEXTS]
    theirs = torch.cat([torch.cat([s[layer + 1][0] for layer in LAYERS], dim=-1) for s in states])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "family"), [(kind, family) for kind, family, _ in CASES])
def test_a_token_costs_as_much_as_with_plain_weights(kind, family, tmp_path):
    """However many weights a stored number packs."""
    plain, small, _ = checkpoints(tmp_path, kind, family)
    assert target_of(small).operations(7, 0) == target_of(plain).operations(7, 0)


@pytest.mark.parametrize(
    ("kind", "family"), [("fp8", SERVED), ("mxfp4", "gpt_oss"), ("int4", "qwen3_moe")]
)
def test_a_batch_is_learnt_by_heart(kind, family, tmp_path):
    _, small, _ = checkpoints(tmp_path, kind, family)
    dataset = write_random_set(tmp_path / "set", small)
    settings = config(
        small, dataset, tmp_path / "run", steps=400, anchors=40, texts=2, weights="uniform"
    )
    right, counts = learn_by_heart(settings)
    assert torch.equal(right, counts) and counts.sum() > 50


def test_a_run_says_why_transformers_computes_it(tmp_path):
    _, small, _ = checkpoints(tmp_path, "fp8", SERVED)
    dataset = write_random_set(tmp_path / "set", small)
    told: list[str] = []
    settings = config(
        small, dataset, tmp_path / "run", steps=60, held_out={"train": str(dataset)},
        target_engine="transformers",
    )  # fmt: skip
    result = train(settings, told.append)
    assert "transformers computes quantised, since this engine does not: config.json" in told[0]
    assert "quantization_config (fp8) is not supported" in told[0]
    assert result.drafter is not None, result.why


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("PACELINE_VLLM_PYTHON" not in os.environ, reason="needs PACELINE_VLLM_PYTHON")
def test_vllm_computes_quantised_weights_with_the_options_of_a_server(tmp_path):
    """int8 with inputs, which vLLM multiplies on a CPU, as near to transformers as bfloat16 is."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "num_kv_heads": 2}
    _, small, _ = checkpoints(tmp_path, "int8", SERVED, head_dim=32, **sizes)
    found = read_target(str(small))
    served = {"max_num_seqs": "4", "block_size": "32"}
    model = VLLMModel(found, "bfloat16", None, 64, alone=True, options=served)
    with closing(ShownTarget(model, found, LAYERS, 0)) as target:
        seen = torch.cat([each.features for each in target.read_all(TEXTS)]).float()
    assert distance(seen, features(small)) < 6e-2, "bfloat16, and inputs that it rounds otherwise"
    assert distance(seen.flip(0), features(small)) > 0.5, "of other tokens"


@pytest.mark.parametrize("copy", ["quantised", "dense"])
def test_a_checkpoint_without_one_tensor_is_refused(copy, tmp_path):
    """transformers would make it up, and the drafter learn from that."""
    checkpoints(tmp_path, "fp8", "qwen3_moe")
    path = tmp_path / copy / "model.safetensors"
    lacking = "model.layers.1.self_attn.q_proj.weight"
    kept = {name: each for name, each in load_file(path).items() if not name.startswith(lacking)}
    save_file(kept, path, {"format": "pt"})
    found = read_target(str(tmp_path / copy))
    with pytest.raises(ModelError, match=rf"{copy}: its files lack 1 tensors: {lacking}"):
        TransformersModel(found, torch.float32, "cpu")
