"""Configs: both spellings of RoPE, windows that count, and refusals that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paceline.core import ModelError
from paceline.models.config import ModelConfig
from paceline.models.families import ARCHITECTURES, FAMILIES, config_from_hf
from paceline.models.rope import rope_tables

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
SCALINGS: list[dict[str, Any]] = [
    {"type": "default"},
    {"type": "linear", "factor": 2.5},
    {"type": "llama3", **LLAMA3},
    {"type": "yarn", **YARN},
    {"type": "yarn", **YARN, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.3},
    {"type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False},
    {"type": "yarn", "factor": 2.0},
]


def read(**changes: Any) -> ModelConfig:
    return config_from_hf({**LLAMA, **changes})


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_rope_tables_equal_transformers_in_every_spelling(scaling: dict[str, Any]) -> None:
    kind = {key: value for key, value in scaling.items() if key != "type"}
    spellings = [
        read(rope_theta=3e4, rope_scaling=scaling),
        read(rope_theta=3e4, rope_scaling={**kind, "rope_type": scaling["type"]}),
        read(rope_parameters={**kind, "rope_type": scaling["type"], "rope_theta": 3e4}),
    ]
    assert spellings[0] == spellings[1] == spellings[2]
    parameters = {**kind, "rope_type": scaling["type"], "rope_theta": 3e4}
    hf = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters=parameters,
    )
    cos, sin = LlamaRotaryEmbedding(hf)(torch.zeros(1), torch.arange(4096)[None])
    ours = rope_tables(spellings[0].rope, spellings[0].head_dim, 4096)
    assert ours[0].dtype == torch.float32 and ours[0].shape == (4096, 8)
    # An angle of 4096 carries a rounding of its own of 2e-4 in float32.
    assert (ours[0] - cos[0, :, :8]).abs().max() < 5e-4
    assert (ours[1] - sin[0, :, :8]).abs().max() < 5e-4
    assert (ours[0][:64] - cos[0, :64, :8]).abs().max() < 1e-5


def test_rope_scaling_null_is_plain_rope() -> None:
    assert read(rope_scaling=None).rope.type == "default"
    assert read().rope.theta == 10000.0


def test_yarn_reaches_its_stretched_context() -> None:
    assert read(rope_scaling={"type": "yarn", **YARN}).max_context == 4096
    stretched = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert read(rope_scaling=stretched).max_context == 16384


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 1024}, 1024),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, None),
        ({"architectures": ["MistralForCausalLM"]}, 4096),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512}, None),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 512,
                "max_window_layers": 2,
            },
            None,
        ),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 512,
                "max_window_layers": 1,
            },
            512,
        ),
        ({"sliding_window": 512}, None),
    ],
)
def test_context_is_capped_by_a_window_that_is_used(
    changes: dict[str, Any], window: int | None
) -> None:
    config = read(**changes)
    assert config.sliding_window == window
    assert config.max_context == (window or 4096)


def test_each_family_is_one_row_that_reads_its_config() -> None:
    assert len(FAMILIES) == len(ARCHITECTURES)
    for family in FAMILIES:
        config = read(architectures=["Unknown", family.architecture])
        assert family.architecture.lower().startswith(config.family)
    assert [family.architecture for family in FAMILIES if family.gguf_pairs] == ["LlamaForCausalLM"]


def test_families_differ_where_they_should() -> None:
    qwen2 = read(architectures=["Qwen2ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read(architectures=["Qwen3ForCausalLM"])
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    assert read(attention_bias=True, mlp_bias=True).o_bias


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["FalconForCausalLM"]}, ["FalconForCausalLM", "LlamaForCausalLM"]),
        ({"architectures": None}, ["none named", "Qwen3ForCausalLM"]),
        ({"rope_scaling": {"rope_type": "longrope"}}, ["longrope", "llama3"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["dynamic", "yarn"]),
        ({"rope_scaling": {"type": "linear"}}, ["factor"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["per layer type"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config", "awq"]),
        ({"num_local_experts": 8}, ["num_local_experts", "dense"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ["partial_rotary_factor", "0.25"]),
        ({"layer_types": ["full_attention", "linear_attention"]}, ["linear_attention"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads", "3"]),
        ({"head_dim": 15}, ["head_dim", "15"]),
        ({"vocab_size": "many"}, ["vocab_size", "many"]),
        ({"hidden_size": 66}, ["hidden_size", "66"]),
        ({"intermediate_size": None}, ["intermediate_size"]),
        ({"num_hidden_layers": 1.5}, ["num_hidden_layers", "1.5"]),
        ({"attention_bias": "no"}, ["attention_bias", "no", "true or false"]),
        ({"rope_scaling": "linear"}, ["rope_scaling", "linear", "an object"]),
        ({"architectures": "LlamaForCausalLM"}, ["architectures", "a list of names"]),
    ],
)
def test_unsupported_config_is_refused_by_name(changes: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ModelError) as refusal:
        read(**changes)
    for word in named:
        assert word in str(refusal.value)


def test_config_read_from_json_is_the_same(tmp_path: Path) -> None:
    LlamaConfig(**{k: v for k, v in LLAMA.items() if k != "architectures"}).save_pretrained(
        tmp_path
    )
    written = json.loads((tmp_path / "config.json").read_text())
    assert config_from_hf({**written, "architectures": ["LlamaForCausalLM"]}) == read()
