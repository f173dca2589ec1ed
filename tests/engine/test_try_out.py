"""A target with damaged weights is refused at start, by name."""

from __future__ import annotations

import pytest
import torch

from paceline.core import ModelError
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from tests.engine.tiny import tiny_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        ("model.norm.weight", float("nan"), "NaN or infinity"),
        ("model.layers.1.mlp.down_proj.weight", float("inf"), "NaN or infinity"),
        ("model.norm.weight", 0.0, "the same for every token"),
    ],
)
def test_damaged_weights_are_refused(dtype: str, tensor: str, value: float, message: str) -> None:
    model = tiny_model(dtype)
    model.weights[tensor].fill_(value)
    config = EngineConfig(model="tiny", drafter=None, dtype=dtype, threads=1)
    with pytest.raises(ModelError, match=f"tiny: its logits .*{message}.*damaged"):
        build_engine(config, model)


def test_weights_of_zeros_are_refused() -> None:
    model = tiny_model("float32")
    for weight in model.weights.values():
        torch.Tensor.zero_(weight)
    config = EngineConfig(model="tiny", drafter=None, dtype="float32", threads=1)
    with pytest.raises(ModelError, match="the same for every token"):
        build_engine(config, model)
