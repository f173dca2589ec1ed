"""The families of networks that are served. To add one, add its row to FAMILIES and, where its
config has fields of its own, a function that reads them. New arithmetic also needs an option in
ModelConfig, its tensors in `tensors.layer_tensors`, and both networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.config import ModelConfig, read_config

DEFAULT_WINDOW = 4096  # what transformers assumes where a config does not mention its window


def read_llama(fields: ConfigFields) -> ModelConfig:
    """Llama 2 and 3.x, SmolLM2. `attention_bias` means all four attention projections, `mlp_bias`
    all three of the MLP."""
    bias, mlp_bias = fields.flag("attention_bias"), fields.flag("mlp_bias")
    return read_config(fields, "llama", qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)


def read_mistral(fields: ConfigFields) -> ModelConfig:
    """Mistral attends through one window in every layer, unless `sliding_window` is null."""
    return read_config(fields, "mistral", sliding_window=_window(fields))


def read_qwen2(fields: ConfigFields) -> ModelConfig:
    """Qwen2 and Qwen2.5 (Coder included): Llama with biases on the q, k and v projections."""
    return read_config(fields, "qwen2", qkv_bias=True, sliding_window=_qwen_window(fields))


def read_qwen3(fields: ConfigFields) -> ModelConfig:
    """Qwen3 dense: RMS norm per head on q and k, and a head size of its own. `attention_bias` means
    all four attention projections; published models have none."""
    bias, window = fields.flag("attention_bias"), _qwen_window(fields)
    shape = read_config(fields, "qwen3", qkv_bias=bias, o_bias=bias, qk_norm=True, head_dim=128)
    return replace(shape, sliding_window=window)


def _qwen_window(fields: ConfigFields) -> int | None:
    """Return the window where `use_sliding_window` is set and some layer has one, by `layer_types`
    or else from layer `max_window_layers` on."""
    if not fields.flag("use_sliding_window"):
        return None
    if fields.has("layer_types"):
        windowed = "sliding_attention" in fields.words("layer_types")
    else:
        first = fields.integer("max_window_layers", default=28, low=0)
        windowed = first < fields.integer("num_hidden_layers")
    return _window(fields) if windowed else None


def _window(fields: ConfigFields) -> int | None:
    if fields.is_null("sliding_window"):
        return None
    return fields.integer("sliding_window", default=DEFAULT_WINDOW)


@dataclass(frozen=True, slots=True)
class NetworkFamily:
    """One architecture, as transformers calls its class, and the function that reads its config.
    `gguf_pairs`: GGUF files hold the two members of a rotary pair side by side."""

    architecture: str
    read: Callable[[ConfigFields], ModelConfig]
    gguf: str | None = None  # its name in GGUF files, where llama.cpp has one for it
    gguf_pairs: bool = False


FAMILIES = (
    NetworkFamily("LlamaForCausalLM", read_llama, gguf="llama", gguf_pairs=True),
    NetworkFamily("MistralForCausalLM", read_mistral),
    NetworkFamily("Qwen2ForCausalLM", read_qwen2, gguf="qwen2"),
    NetworkFamily("Qwen3ForCausalLM", read_qwen3, gguf="qwen3"),
)
ARCHITECTURES = {family.architecture: family for family in FAMILIES}
GGUF_FAMILIES = {family.gguf: family for family in FAMILIES if family.gguf}


def config_from_hf(hf: Mapping[str, object]) -> ModelConfig:
    """Read a Hugging Face config. Raises ModelError naming what is not supported."""
    fields = ConfigFields(hf)
    names = fields.words("architectures")
    family = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if family is None:
        named = ", ".join(names) or "none named"
        raise ModelError(
            f"config.json: architecture {named} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return family.read(fields)
