"""Quantised copies of tiny checkpoints, as published ones are stored, each beside the weights that
it stands for, in float32. The arithmetic is written out here, so that it judges transformers'."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Stored = tuple[Tensors, torch.Tensor]  # one weight's tensors by suffix, and what they stand for
GROUP = 32  # columns that share a scale, and rows too in fp8
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # and the same with a sign


def fp8(weight: torch.Tensor) -> Stored:
    """Return e4m3 with a scale for each square, as Qwen3's and DeepSeek's checkpoints have it."""
    rows, columns = (size // GROUP for size in weight.shape)
    tiles = weight.view(rows, GROUP, columns, GROUP)
    scales = tiles.abs().amax((1, 3)) / 448
    small = (tiles / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    dense = (small.float() * scales[:, None, :, None]).view(weight.shape)
    return {"": small.view(weight.shape), "_scale_inv": scales}, dense


def int8(weight: torch.Tensor) -> Stored:
    """Return whole numbers with a scale for each row."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    whole = (weight / scales).round().to(torch.int8)
    return {"": whole, "_scale": scales}, whole.float() * scales


def int4(weight: torch.Tensor) -> Stored:
    """Return eight whole numbers of 4 bits in each int32, the first one in its lowest bits."""
    groups = weight.view(len(weight), -1, GROUP)
    scales = groups.abs().amax(2, keepdim=True) / 7
    whole = (groups / scales).round()
    eights = (whole.long() + 8).view(len(weight), -1, 8)
    words = (eights << torch.arange(0, 32, 4)).sum(2).to(torch.int32)
    shape = torch.tensor(weight.shape)
    stored = {"_packed": words, "_scale": scales[..., 0], "_shape": shape}
    return stored, (whole * scales).view(weight.shape)


def mxfp4(weight: torch.Tensor) -> Stored:
    """Return pairs of e2m1 in each byte with a power of two for 32 of them, of experts
    [experts, in, out]: as gpt-oss stores them, [experts, out, in]."""
    turned = weight.transpose(1, 2)
    groups = turned.reshape(*turned.shape[:2], -1, GROUP)
    exponents = (groups.abs().amax(3) / E2M1[-1]).log2().ceil()
    scaled = groups / exponents.exp2()[..., None]
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    signs = (scaled < 0).long()
    dense = E2M1[codes] * (1 - 2 * signs) * exponents.exp2()[..., None]
    nibbles = codes + 8 * signs
    pairs = (nibbles[..., 0::2] + 16 * nibbles[..., 1::2]).to(torch.uint8)
    stored = {"_blocks": pairs, "_scales": (exponents + 127).to(torch.uint8)}
    return stored, dense.view(turned.shape).transpose(1, 2).contiguous()


def compressed(form: str, weights: dict[str, Any], inputs: bool) -> dict[str, Any]:
    """Return the configuration that llm-compressor writes; `inputs` quantises those of every token
    while it is computed."""
    symmetric = {"type": "int", "symmetric": True}
    tokens = {"num_bits": 8, "strategy": "token", "dynamic": True} | symmetric
    group = {"targets": ["Linear"], "weights": weights | symmetric}
    if inputs:
        group["input_activations"] = tokens
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


# kind -> how a weight is stored, and what config.json says of it
KINDS: dict[str, tuple[Callable[[torch.Tensor], Stored], dict[str, Any]]] = {
    "fp8": (
        fp8,
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [GROUP, GROUP],
        },
    ),
    "mxfp4": (mxfp4, {"quant_method": "mxfp4"}),
    "int8": (
        int8,
        compressed("int-quantized", {"num_bits": 8, "strategy": "channel"}, inputs=True),
    ),
    "int4": (
        int4,
        compressed(
            "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": GROUP}, False
        ),
    ),
}


def quantised(plain: Path, kind: str, folder: Path) -> tuple[Path, Path]:
    """Write the quantised copy of a checkpoint, and one of the weights that it stands for."""
    store, said = KINDS[kind]
    weights = load_file(plain / "model.safetensors")
    small: Tensors = {}
    dense: Tensors = {}
    for name, weight in weights.items():
        dense[name] = weight
        if not _is_quantised(name, weight, kind):
            small[name] = weight
            continue
        stored, dense[name] = store(weight.float())
        small |= {name + suffix: each for suffix, each in stored.items()}
    config = json.loads((plain / "config.json").read_text())
    copies = {
        "quantised": (small, config | {"quantization_config": said}),
        "dense": (dense, config),
    }
    for name, (tensors, stated) in copies.items():
        shutil.copytree(plain, folder / name)
        save_file(tensors, folder / name / "model.safetensors", {"format": "pt"})
        (folder / name / "config.json").write_text(json.dumps(stated))
    return folder / "quantised", folder / "dense"


def _is_quantised(name: str, weight: torch.Tensor, kind: str) -> bool:
    """Return whether published checkpoints quantise a tensor: the experts of gpt-oss, and else all
    matrices of the layers but routers."""
    if kind == "mxfp4":
        return weight.dim() == 3
    return weight.dim() == 2 and ".layers." in name and not name.endswith("mlp.gate.weight")
