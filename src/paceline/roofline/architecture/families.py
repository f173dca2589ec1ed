"""The model families that the roofline knows, and the reader of their configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import ModelError
from paceline.roofline.architecture.components import Component, Projection, Sampling
from paceline.roofline.architecture.config import MOST_LAYERS, ConfigFields
from paceline.roofline.architecture.feed_forward import dense, mixture, mixture_beside_dense
from paceline.roofline.architecture.formats import read_formats
from paceline.roofline.architecture.mixers import (
    alternating,
    compressed,
    gemma,
    grouped_query,
    hybrid,
    latent,
    sparse_latent,
)
from paceline.roofline.architecture.network import Architecture, grouped, load_config

Reader = Callable[[ConfigFields, Mapping[str, str], int], tuple[Component, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """Readers of a layer's two halves: (fields, format by part, index of the layer) to components.

    An index one past the last layer asks for the model's own draft layer. `kv` is the cache's
    format, where it is not that of the activations; `tied` holds for a config that does not say.
    """

    mixer: Reader
    feed_forward: Reader
    kv: str | None = None
    tied: bool = False


FAMILIES = {
    "llama": Family(grouped_query, dense),
    "mistral": Family(grouped_query, dense),
    "qwen2": Family(grouped_query, dense),
    "qwen3": Family(grouped_query, dense),
    "mixtral": Family(grouped_query, mixture),
    "qwen3_moe": Family(grouped_query, mixture),
    "glm4_moe": Family(grouped_query, mixture),
    "minimax_m2": Family(grouped_query, mixture),
    "gpt_oss": Family(alternating, mixture),
    "gemma4": Family(gemma, mixture_beside_dense, tied=True),
    "qwen3_next": Family(hybrid, mixture),
    "qwen3_5": Family(hybrid, dense),
    "qwen3_5_moe": Family(hybrid, mixture),
    "deepseek_v3": Family(latent, mixture),
    "kimi_k2": Family(latent, mixture),
    "deepseek_v32": Family(sparse_latent, mixture, kv="fp8"),
    "glm_moe_dsa": Family(sparse_latent, mixture),
    "deepseek_v4": Family(compressed, mixture, kv="fp8"),
}
DRAFT_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def read_architecture(
    config: Mapping[str, Any] | str | Path,
    *,
    precision: str | Mapping[str, str] | None = None,
    name: str | None = None,
) -> Architecture:
    """Read the architecture of a Hugging Face config: its dict, its file, its folder, or a model's
    name from `model_names()`.

    `precision` overrides the config's number formats: one name for all matrices but the head, or
    names by part (`formats.PARTS`). Raises ModelError for an unknown family (by name, with the
    list) and for a field that is missing or wrong; InvalidRequest for a bad `precision`.
    """
    if not isinstance(config, Mapping):
        name, config = name or str(config), load_config(config)
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise ModelError(f"config: text_config is {text!r}; expected an object")
    family = _family(config, text)
    kind = FAMILIES[family]
    fields, formats = ConfigFields(text), read_formats(config, text, precision, kind.kv)
    hidden, vocabulary = fields.integer("hidden_size"), fields.integer("vocab_size")
    depth = fields.integer("num_hidden_layers", high=MOST_LAYERS)

    def layer(index: int) -> tuple[Component, ...]:
        return kind.mixer(fields, formats, index) + kind.feed_forward(fields, formats, index)

    drafts = fields.integer(*DRAFT_LAYERS, default=0, low=0)
    fusion = Projection("draft_fusion", 2 * hidden * hidden, formats["attention"])
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return Architecture(
        name=name or str(config.get("_name_or_path") or "model"),
        family=family,
        hidden=hidden,
        vocabulary=vocabulary,
        layers=grouped([layer(index) for index in range(depth)]),
        head=(
            Projection("head", vocabulary * hidden, formats["head"]),
            Sampling(vocabulary),
        ),
        tied=kind.tied if tied is None else bool(tied),
        embedding_format=formats["head"],
        draft_layer=(fusion, *layer(depth)) if drafts else (),
        max_context=fields.integer("max_position_embeddings", default=0, low=0),
    )


def _family(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """Return the key of the config's family. Raises ModelError for an unknown one.

    The text model's own name decides: a wrapper of a known name may hold a new model.
    """
    named = text.get("model_type") or config.get("model_type")
    family = str(named).removesuffix("_text")
    if family in FAMILIES:
        return family
    families = ", ".join(sorted(FAMILIES))
    raise ModelError(
        f"config: the roofline does not know the family {named!r}; it knows {families}"
    )
