"""What a network is made of, read from a Hugging Face config and checked field by field.

A field that the network code would not honour is refused here, so that a model never runs as
something slightly different from what its authors trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core import ModelError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. Fields beyond `theta` only matter to the types named beside them.

    `attention_factor` multiplies cos and sin; where a config gives yarn's mscale, it is resolved.
    """

    theta: float = 10000.0
    type: str = "default"
    factor: float = 1.0  # linear, llama3, yarn
    original_max_positions: int = 0  # llama3, yarn: the context the model was pretrained on
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    attention_factor: float = 1.0  # yarn


@dataclass(frozen=True, slots=True)
class Attention:
    """Which positions a layer's rows see. A causal layer's rows see none after their own; the rows
    of others see the whole of what their sequence brings to the forward. `window` counts positions
    to either side, the row's own included; None is no window.
    """

    window: int | None = None
    causal: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and options of one decoder network.

    `sliding_window` is None unless some layer really uses a window. Such a model is served up to
    its window, where windowed and full attention are the same thing.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    max_position_embeddings: int
    rope: RopeConfig
    sliding_window: int | None = None

    @property
    def max_context(self) -> int:
        """Most tokens (prompt and output) that the model can attend over as trained."""
        longest = self.max_position_embeddings
        if self.rope.type == "yarn":
            longest = max(longest, int(self.rope.original_max_positions * self.rope.factor))
        return longest if self.sliding_window is None else min(longest, self.sliding_window)


def number(hf: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive number from a config. Raises ModelError when it is missing or something else."""
    value = hf.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ModelError(f"config.json: {key} is {value!r}; expected a positive number")
    return value


def integer(hf: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = number(hf, key, default)
    if value != int(value):
        raise ModelError(f"config.json: {key} is {value!r}; expected a whole number")
    return int(value)


def read_config(
    hf: Mapping[str, Any],
    family: str,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    head_dim: int | None = None,
    sliding_window: int | None = None,
) -> ModelConfig:
    """Builds the ModelConfig from the fields that all families share and the family's own options.

    `head_dim` is the family's default; None means hidden_size / num_attention_heads.
    Raises ModelError for a field that is missing, malformed or not supported.
    """
    refuse_unsupported(hf)
    heads, hidden = integer(hf, "num_attention_heads"), integer(hf, "hidden_size")
    kv_heads = integer(hf, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(
            f"config.json: num_key_value_heads is {kv_heads}; "
            f"expected a divisor of num_attention_heads ({heads})"
        )
    if head_dim is None and hf.get("head_dim") is None and hidden % heads:
        raise ModelError(
            f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}, "
            "and head_dim is not given"
        )
    dim = integer(hf, "head_dim", head_dim or hidden // heads)
    if dim % 2:
        raise ModelError(f"config.json: head_dim is {dim}; rotary embedding needs an even number")
    max_positions = integer(hf, "max_position_embeddings")
    return ModelConfig(
        family=family,
        vocab_size=integer(hf, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=integer(hf, "intermediate_size"),
        num_layers=integer(hf, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        rms_norm_eps=float(number(hf, "rms_norm_eps", 1e-6)),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
        max_position_embeddings=max_positions,
        rope=read_rope(hf, max_positions),
        sliding_window=sliding_window,
    )


def refuse_unsupported(hf: Mapping[str, Any]) -> None:
    """Raises ModelError for options that change the arithmetic in ways we don't implement."""
    if hf.get("quantization_config"):
        method = hf["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"config.json: quantization_config ({method}) is not supported; "
            "supported: unquantised bfloat16, float16 or float32 weights, or a GGUF file"
        )
    activation = hf.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"config.json: hidden_act {activation!r} is unsupported; supported: silu")
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if hf.get(key):
            raise ModelError(
                f"config.json: {key} = {hf[key]}: mixtures of experts are not supported; "
                "supported: dense models"
            )
    unknown = sorted(set(hf.get("layer_types") or ()) - set(LAYER_TYPES))
    if unknown:
        raise ModelError(
            f"config.json: layer_types has {unknown[0]!r}; supported: {', '.join(LAYER_TYPES)}"
        )


def read_rope(hf: Mapping[str, Any], max_positions: int) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before)."""
    rope = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ModelError(
            "config.json: rope parameters per layer type are not supported; "
            "supported: one set for all layers"
        )
    if kind not in ROPE_TYPES:
        raise ModelError(
            f"config.json: rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
        )
    partial = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ModelError(
            f"config.json: partial_rotary_factor {partial} is not supported; supported: 1"
        )
    theta = float(number(rope, "rope_theta", hf.get("rope_theta") or 1e4))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta, kind, float(number(rope, "factor")))
    key = "original_max_position_embeddings"
    original = integer(hf if hf.get(key) is not None else rope, key, max_positions)
    if kind == "llama3":
        return _read_llama3(rope, theta, original)
    return _read_yarn(rope, theta, original, max_positions)


def _read_llama3(rope: Mapping[str, Any], theta: float, original: int) -> RopeConfig:
    low, high = number(rope, "low_freq_factor"), number(rope, "high_freq_factor")
    if high <= low:
        raise ModelError(
            f"config.json: high_freq_factor is {high}; expected more than low_freq_factor ({low})"
        )
    return RopeConfig(
        theta=theta,
        type="llama3",
        factor=float(number(rope, "factor")),
        original_max_positions=original,
        low_freq_factor=float(low),
        high_freq_factor=float(high),
    )


def _read_yarn(
    rope: Mapping[str, Any], theta: float, original: int, max_positions: int
) -> RopeConfig:
    factor = float(number(rope, "factor", max_positions / original))
    attention = rope.get("attention_factor")
    if attention is None:
        attention = yarn_attention_factor(factor, rope.get("mscale"), rope.get("mscale_all_dim"))
    return RopeConfig(
        theta=theta,
        type="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        truncate=bool(rope.get("truncate", True)),
        attention_factor=float(attention),
    )


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """YaRN's temperature on attention (arXiv 2309.00071, eq. 22): 0.1 ln(factor) + 1.

    With both mscales (DeepSeek's variant) it is the ratio of the two scaled temperatures.
    """
    if factor <= 1:
        return 1.0
    log = 0.1 * math.log(factor)
    if mscale and mscale_all_dim:
        return (mscale * log + 1) / (mscale_all_dim * log + 1)
    return log + 1
