"""Read the config of vllm-project/speculators into the z-lab form.

Tensors carry the same names. What differs: the network's shape is nested, layers are counted from
the embedding (so by one more), and causality has a flag of its own: sliding layers are causal
unless `sliding_window_non_causal`, full layers never are.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.dflash.foreign import KNOWN

ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
SECOND_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def is_speculators(hf: Mapping[str, object]) -> bool:
    return "speculators_model_type" in hf


def from_speculators(hf: Mapping[str, object]) -> dict[str, object]:
    """Return the same config in z-lab's form. Raises ModelError for what that form cannot say."""
    fields = ConfigFields(hf)
    kind = fields.get("speculators_model_type")
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"config.json: speculators_model_type {kind!r} is not read; {KNOWN} "
            f"({' and '.join(ARCHITECTURES)})"
        )
    if not fields.has("transformer_layer_config"):
        raise ModelError("config.json: transformer_layer_config is missing")
    shape = fields.section("transformer_layer_config", prefix="transformer_layer_config.")
    _refuse_separate_head(fields, shape)
    second = ARCHITECTURES[kind] == "DFlash2DraftModel"
    extra = {
        "mask_token_id": fields.get("mask_token_id"),
        "target_layer_ids": _layer_ids(fields),
        "sample_from_anchor": fields.flag("sample_from_anchor"),
    }
    if second:
        extra |= {key: fields.get(key) for key in SECOND_KEYS}
    sliding = "sliding_attention" in shape.words("layer_types")
    # Without a flag, z-lab's rule is theirs: sliding layers causal, full ones not.
    not_causal = sliding and fields.flag("sliding_window_non_causal", default=second)
    return {
        **shape.values,
        **({"is_causal": False} if not_causal else {}),
        # Their training slides wherever layer_types says so, whatever this flag says.
        "use_sliding_window": sliding or shape.flag("use_sliding_window"),
        "architectures": [ARCHITECTURES[kind]],
        "block_size": hf.get("block_size", 8),
        "dflash_config": extra,
    }


def _layer_ids(fields: ConfigFields) -> list[int]:
    key = "aux_hidden_state_layer_ids"
    ids = fields.get(key)
    integers = isinstance(ids, list) and all(type(layer) is int for layer in ids)
    if not ids or not integers:
        expected = "layer numbers of the target, counted from 1 (0 is the embedding)"
        raise fields.error(key, ids, expected)
    if min(ids) < 1:
        raise ModelError(
            f"config.json: {key} has {min(ids)}, the embedding; expected layers from 1 on"
        )
    return [layer - 1 for layer in ids]


def _refuse_separate_head(fields: ConfigFields, shape: ConfigFields) -> None:
    """Raise ModelError for a drafter with a head of its own, or of another width."""
    reduced, vocabulary = fields.get("draft_vocab_size"), shape.get("vocab_size")
    if reduced is not None and reduced != vocabulary:
        raise ModelError(
            f"config.json: draft_vocab_size is {reduced}, a head of the drafter's own with EAGLE's "
            f"d2t/t2d; expected the target's vocabulary ({vocabulary})"
        )
    other, hidden = fields.get("target_hidden_size"), shape.get("hidden_size")
    if other is not None and other != hidden:
        expected = f"the drafter's hidden_size ({hidden}): it borrows the target's embedding"
        raise fields.error("target_hidden_size", other, f"{expected} and head")
