"""A tiny model's config.json, and engines that mock it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.bench.mock.plan import MockPlan
from paceline.bench.mock.setup import MockDrafting, build, read_target
from paceline.engine.engine import Engine

TINY: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
TINY_DFLASH: dict[str, Any] = {
    **TINY,
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "block_size": 8,
    "num_target_layers": 3,
    "attention_bias": False,
    "rope_theta": 10000.0,
    "dflash_config": {"mask_token_id": 200, "target_layer_ids": [0]},
}


def config_file(folder: Path, hf: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Writes a config.json; None for a field leaves it out."""
    fields = {**(TINY if hf is None else hf), **changes}
    path = folder / "config.json"
    kept = {name: value for name, value in fields.items() if value is not None}
    path.write_text(json.dumps(kept), "utf-8")
    return path


def mocked(
    folder: Path, plan: MockPlan, drafting: MockDrafting | None = None, **options: Any
) -> Engine:
    """An engine for that plan, on one thread: its work is too small to share."""
    target = read_target(str(config_file(folder)))
    options = {"threads": 1, **options}
    return build(target, plan, drafting or MockDrafting(), **options)


def of_lengths(*lengths: float, **more: Any) -> MockPlan:
    settings = {"draft_lengths": (7,), "context": 300, "steps": 64, **more}
    return MockPlan(goals=lengths, **settings)
