"""A drafter whose layers or attention torch compiles learns as one that it runs as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from paceline.training.run import prepare
from paceline.training.workers import Workers
from tests.training.runs import config

pytestmark = pytest.mark.slow  # compiling takes most of a minute
RTOL, ATOL = 2e-2, 2e-4
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
)


def weights(
    target: Path, trainset: Path, out: Path, steps: int = 8, **options: Any
) -> dict[str, torch.Tensor]:
    """The weights after a few steps over texts of many lengths."""
    settings = config(target, trainset, out, steps=8, **options)
    trainer = prepare(settings, Workers(settings.device))
    for _ in range(steps):
        trainer.take_step()
    return {name: value.cpu() for name, value in trainer.form.drafter.state_dict().items()}


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("generation", ["dflash", "dflash2"])
def test_compiled_layers_learn_the_same(generation, device, target, trainset, tmp_path) -> None:
    options = {"generation": generation, "device": device, "dtype": "float32", "optimizer": "adamw"}
    plain = weights(target, trainset, tmp_path / "plain", **options)
    torch._dynamo.reset()
    counters.clear()
    compiled = weights(target, trainset, tmp_path / "compiled", compile=True, **options)
    graphs = counters["stats"]["unique_graphs"]
    assert 0 < graphs <= 12, "lengths of texts must not compile again"
    again = weights(target, trainset, tmp_path / "again", compile=True, **options)
    assert plain.keys() == compiled.keys()
    for name, value in plain.items():
        torch.testing.assert_close(compiled[name], value, rtol=RTOL, atol=ATOL)
        assert torch.equal(compiled[name], again[name]), name
    # Negative control: a step fewer is seen.
    fewer = weights(target, trainset, tmp_path / "fewer", steps=7, **options)
    assert not all(torch.allclose(fewer[n], plain[n], rtol=RTOL, atol=ATOL) for n in plain)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("compile", [False, True])
def test_flex_attention_learns_what_the_padded_form_does(compile, target, trainset, tmp_path):
    options = {"device": "cuda", "dtype": "float32", "optimizer": "adamw"}
    padded = weights(target, trainset, tmp_path / "padded", **options)
    options |= {"attention": "flex", "compile": compile}
    flex = weights(target, trainset, tmp_path / "flex", **options)
    for name, value in padded.items():
        torch.testing.assert_close(flex[name], value, rtol=RTOL, atol=ATOL)
    fewer = weights(target, trainset, tmp_path / "fewer", steps=7, **options)
    assert not all(torch.allclose(fewer[n], padded[n], rtol=RTOL, atol=ATOL) for n in padded)
