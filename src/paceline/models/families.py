"""The registry of architectures: who reads which Hugging Face config into a ModelConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.core import ModelError
from paceline.models.config import ModelConfig
from paceline.models.llama import read_llama, read_mistral
from paceline.models.qwen2 import read_qwen2
from paceline.models.qwen3 import read_qwen3

ARCHITECTURES: dict[str, Callable[[Mapping[str, Any]], ModelConfig]] = {
    "LlamaForCausalLM": read_llama,
    "MistralForCausalLM": read_mistral,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
}


def named_architectures(hf: Mapping[str, Any]) -> list[str]:
    """The classes that a config names, or none. Raises ModelError where that is no list."""
    names = hf.get("architectures") or []
    if not isinstance(names, list):
        raise ModelError(f"config.json: architectures is {names!r}; expected a list of names")
    return [str(name) for name in names]


def config_from_hf(hf: Mapping[str, Any]) -> ModelConfig:
    """Reads a Hugging Face config dict. Raises ModelError naming what is not supported."""
    names = named_architectures(hf)
    reader = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if reader is None:
        named = ", ".join(names) or "none named"
        raise ModelError(
            f"config.json: architecture {named} is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return reader(hf)
