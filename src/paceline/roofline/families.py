"""The model families that the roofline knows, and how each one's config is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import ModelError
from paceline.roofline.architecture import Architecture, grouped, head
from paceline.roofline.components import Component, Sampling
from paceline.roofline.feed_forward import dense, mixture
from paceline.roofline.fields import Fields
from paceline.roofline.formats import read_formats
from paceline.roofline.mixers import grouped_query

Reader = Callable[[Fields, Mapping[str, str], int], tuple[Component, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """Readers of a layer's two halves: (fields, format by part, index of the layer) to components.

    An index one past the last layer asks for the model's own draft layer.
    """

    mixer: Reader
    feed_forward: Reader
    tied: bool = False  # what a config means that does not say


FAMILIES = {
    "llama": Family(grouped_query, dense),
    "mistral": Family(grouped_query, dense),
    "qwen2": Family(grouped_query, dense),
    "qwen3": Family(grouped_query, dense),
    "mixtral": Family(grouped_query, mixture),
    "qwen3_moe": Family(grouped_query, mixture),
}


def read_family(
    config: Mapping[str, Any], precision: str | Mapping[str, str] | None, name: str
) -> Architecture:
    """See `read_architecture`."""
    text = config.get("text_config") or config
    family = _family(config, text)
    fields, formats = Fields(text), read_formats(config, text, precision)
    kind = FAMILIES[family]
    hidden, vocabulary = fields.integer("hidden_size"), fields.integer("vocab_size")
    depth = fields.integer("num_hidden_layers")
    layers = [
        kind.mixer(fields, formats, i) + kind.feed_forward(fields, formats, i) for i in range(depth)
    ]
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return Architecture(
        name=name,
        family=family,
        hidden=hidden,
        vocabulary=vocabulary,
        layers=grouped(layers),
        head=(head(vocabulary, hidden, formats["head"]), Sampling(vocabulary)),
        tied=kind.tied if tied is None else bool(tied),
        embedding_format=formats["head"],
        max_context=fields.integer("max_position_embeddings", default=0, low=0),
    )


def _family(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """The family's key. Raises ModelError for one that is not known."""
    named = str(config.get("model_type") or text.get("model_type"))
    for name in (str(text.get("model_type") or named), named):
        if name.removesuffix("_text") in FAMILIES:
            return name.removesuffix("_text")
    known = ", ".join(sorted(FAMILIES))
    raise ModelError(f"config: the roofline does not know the family {named!r}; it knows {known}")
