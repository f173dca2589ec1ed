"""The model families that the roofline knows, and the reader of their configs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from paceline.core.errors import ModelError
from paceline.roofline.architecture.components import Projection, Sampling
from paceline.roofline.architecture.config import LayeredConfig, Precision, read_formats
from paceline.roofline.architecture.layers import (
    Components,
    alternating,
    compressed,
    dense,
    gemma,
    grouped_query,
    hybrid,
    latent,
    mixture,
    mixture_beside_dense,
    sparse_latent,
)
from paceline.roofline.architecture.network import Architecture, Layers, load_config

Reader = Callable[[LayeredConfig, int], Components]


class Family(NamedTuple):
    """Readers of a layer's two halves: (fields, index of the layer) to components.

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
    config: Mapping[str, object] | str | Path,
    *,
    precision: Precision | None = None,
    name: str | None = None,
) -> Architecture:
    """Read the architecture of a Hugging Face config: its dict, its file, its folder, or a model's
    name from `model_names()`.

    `precision` overrides the config's number formats: one name for all matrices but the head, or
    names by part (`config.PARTS`). Raises ModelError for an unknown family (by name, with the
    list) and for a field that is missing or wrong; InvalidRequest for a bad `precision`.
    """
    if not isinstance(config, Mapping):
        name, config = name or str(config), load_config(config)
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise ModelError(f"config: text_config is {text!r}; expected an object")
    # the text model's own name decides: a wrapper of a known name may hold a new model
    model_type = text.get("model_type") or config.get("model_type")
    family = str(model_type).removesuffix("_text")
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        message = f"config: the roofline does not know the family {model_type!r}; it knows {known}"
        raise ModelError(message)
    kind = FAMILIES[family]
    fields = LayeredConfig(text, read_formats(config, text, precision, kind.kv))
    hidden, vocabulary = fields.integer("hidden_size"), fields.integer("vocab_size")
    depth, formats = fields.depth, fields.formats

    def layer(index: int) -> Components:
        return kind.mixer(fields, index) + kind.feed_forward(fields, index)

    # equal layers together: their order does not matter to a sum
    layers = Counter(layer(index) for index in range(depth))
    drafts = fields.integer(*DRAFT_LAYERS, default=0, low=0)
    fusion = Projection("draft_fusion", 2 * hidden * hidden, formats["attention"])
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return Architecture(
        name=name or str(config.get("_name_or_path") or "model"),
        family=family,
        hidden=hidden,
        vocabulary=vocabulary,
        layers=tuple(Layers(count, parts) for parts, count in layers.items()),
        head=(Projection("head", vocabulary * hidden, formats["head"]), Sampling(vocabulary)),
        tied=kind.tied if tied is None else bool(tied),
        embedding_format=formats["head"],
        draft_layer=(fusion, *layer(depth)) if drafts else (),
        max_context=fields.integer("max_position_embeddings", default=0, low=0),
    )
