"""Model folders of any size that take no disk: safetensors files whose data are holes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from paceline.models.tensors import expected_tensors
from tests.engine.tiny import EOS, byte_tokenizer, hf_json, tiny_config

# About 36 GiB in bf16, of which the largest tensor is a small part.
LARGE: dict[str, Any] = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_layers": 22, "num_heads": 64,
    "num_kv_heads": 8, "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 8192,
}  # fmt: skip


def save_sparse(folder: Path, shards: int = 1, **shape: Any) -> Path:
    """Write a folder whose headers, config and tokenizer are whole; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(**shape)
    shapes = expected_tensors(config)
    names = list(shapes)
    files = {f"model-{i}.safetensors": names[i::shards] for i in range(shards)}
    if shards == 1:
        files = {"model.safetensors": names}
    else:
        places = {name: file for file, inside in files.items() for name in inside}
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))
    for file, inside in files.items():
        _write_holes(folder / file, {name: shapes[name] for name in inside})
    byte_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(hf_json(config, EOS)))
    return folder


def _write_holes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + torch.Size(shape).numel() * 2
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
