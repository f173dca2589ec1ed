"""Reads the config of vllm-project/speculators into the z-lab form.

Tensors carry the same names. What differs: the network's shape is nested, layers are counted from
the embedding (so by one more), and causality has a flag of its own: sliding layers are causal
unless `sliding_window_non_causal`, full layers never are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core import ModelError
from paceline.models.dflash.config import KNOWN

ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
SECOND_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def is_speculators(hf: Mapping[str, Any]) -> bool:
    return "speculators_model_type" in hf


def from_speculators(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The same config in z-lab's form. Raises ModelError for what that form cannot say."""
    kind = hf["speculators_model_type"]
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"config.json: speculators_model_type {kind!r} is not read; {KNOWN} "
            f"({' and '.join(ARCHITECTURES)})"
        )
    shape = hf.get("transformer_layer_config")
    if not isinstance(shape, Mapping):
        raise ModelError("config.json: transformer_layer_config is missing")
    _refuse_own_head(hf, shape)
    second = ARCHITECTURES[kind] == "DFlash2DraftModel"
    extra: dict[str, Any] = {
        "mask_token_id": hf.get("mask_token_id"),
        "target_layer_ids": _layer_ids(hf),
        "sample_from_anchor": hf.get("sample_from_anchor", False),
    }
    if second:
        extra |= {key: hf.get(key) for key in SECOND_KEYS}
    types = shape.get("layer_types") or []
    sliding = "sliding_attention" in types
    # Without a flag, z-lab's rule is theirs: sliding layers causal, full ones not.
    causal = {"is_causal": False} if sliding and hf.get("sliding_window_non_causal", second) else {}
    return {
        **shape,
        **causal,
        # Their training slides wherever layer_types says so, whatever this flag says.
        "use_sliding_window": sliding or shape.get("use_sliding_window", False),
        "architectures": [ARCHITECTURES[kind]],
        "block_size": hf.get("block_size", 8),
        "dflash_config": extra,
    }


def _layer_ids(hf: Mapping[str, Any]) -> list[int]:
    ids = hf.get("aux_hidden_state_layer_ids")
    whole = isinstance(ids, list) and all(type(layer) is int for layer in ids)
    if not ids or not whole:
        raise ModelError(
            f"config.json: aux_hidden_state_layer_ids is {ids!r}; expected layer numbers of the "
            "target, counted from 1 (0 is the embedding)"
        )
    if min(ids) < 1:
        raise ModelError(
            f"config.json: aux_hidden_state_layer_ids has {min(ids)}, the embedding; expected "
            "layers from 1 on"
        )
    return [layer - 1 for layer in ids]


def _refuse_own_head(hf: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
    reduced, whole = hf.get("draft_vocab_size"), shape.get("vocab_size")
    if reduced is not None and reduced != whole:
        raise ModelError(
            f"config.json: draft_vocab_size is {reduced}, a head of the drafter's own with EAGLE's "
            f"d2t/t2d; expected the target's vocabulary ({whole})"
        )
    other = hf.get("target_hidden_size")
    if other is not None and other != shape.get("hidden_size"):
        raise ModelError(
            f"config.json: target_hidden_size is {other}; expected the drafter's hidden_size "
            f"({shape.get('hidden_size')}): it borrows the target's embedding and head"
        )
