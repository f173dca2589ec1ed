"""Configs beside z-lab's own: that of vllm-project/speculators, which is read, and those of other
kinds of drafters, which are refused by the kind's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields

ARCHITECTURES = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}  # by speculators
FOREIGN_KEYS = {  # kind of drafter, or option -> fields of the config or of dflash_config
    "a DSpark drafter": ("markov_rank", "markov_head_type", "enable_confidence_head"),
    "a Domino drafter": ("gru_hidden_dim", "pure_draft_prefix_len", "shift_label"),
    "attention sinks": ("attention_sink_bias", "add_swa_attention_sink_bias"),
    "scaled attention values": ("attention_value_scale",),
    "drafting from the anchor's own slot": ("sample_from_anchor",),
}
SECOND_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
# Keys of dflash_config that are read, or say nothing that a network computes.
KNOWN_KEYS = (
    "mask_token_id", "mask_token", "target_layer_ids", "num_target_layers", "block_size",
    "causal", "use_swa", "swa_window_size", "input_embedding_scale", "output_multiplier",
    "final_logit_softcapping", *SECOND_KEYS,
)  # fmt: skip
NESTED_KEYS = {"causal", "use_swa", "swa_window_size", "projector_type"}  # in dflash_config alone
FOREIGN_ARCHITECTURES = {
    "DSpark": "DSpark drafters",
    "Domino": "Domino drafters",
    "Eagle": "EAGLE drafters",
    "LiLiCorr": "LiLiCorr drafters",
    "Laguna": "Laguna's variant of DFlash",
}
# Tensors of other drafters, by a part of their names.
FOREIGN_TENSORS = {
    "d2t": "EAGLE's map from a reduced vocabulary",
    "t2d": "EAGLE's map to a reduced vocabulary",
    "prefix_gru": "a Domino drafter's",
    "embed_proj": "a Domino drafter's",
    "markov": "a DSpark drafter's",
    "confidence_head": "a DSpark drafter's",
    "lm_head": "a head of the drafter's own; a DFlash drafter borrows the target's",
    "embed_tokens": "an embedding of the drafter's own; a DFlash drafter borrows the target's",
}
KNOWN = "known are DFlash and DFlash 2 drafters in z-lab's or speculators' format"


def refuse_foreign(fields: ConfigFields, extra: Iterable[str]) -> None:
    """Raise ModelError for a drafter of another kind, naming the kind. `extra` are the names of the
    fields that lie in dflash_config."""
    names = fields.words("architectures")
    for name in names:
        for part, kind in FOREIGN_ARCHITECTURES.items():
            if part.lower() in name.lower():
                raise ModelError(f"config.json: architecture {name}: {kind} are not read; {KNOWN}")
    if not set(names) & set(ARCHITECTURES.values()):
        named = ", ".join(names) or "none named"
        raise ModelError(
            f"config.json: architecture {named} is no DFlash drafter; "
            f"expected {' or '.join(ARCHITECTURES.values())}"
        )
    if projector := fields.get("projector_type"):
        raise ModelError(
            f"config.json: dflash_config.projector_type {projector!r} (a Domino drafter) is not "
            f"read; {KNOWN}"
        )
    foreign = {key: kind for kind, keys in FOREIGN_KEYS.items() for key in keys}
    for key, kind in foreign.items():
        value = fields.get(key)
        if value and not (key == "attention_value_scale" and value == 1):
            raise ModelError(f"config.json: {key} ({kind}) is not supported; {KNOWN}")
    unknown = sorted(set(extra) - set(KNOWN_KEYS) - {"projector_type", *foreign})
    if unknown:
        raise ModelError(
            f"config.json: dflash_config.{unknown[0]} is not known; known are "
            f"{', '.join(KNOWN_KEYS)}"
        )


def refuse_foreign_tensors(names: Iterable[str]) -> None:
    """Raise ModelError for a tensor of another kind of drafter, naming the kind."""
    for name in names:
        for part, kind in FOREIGN_TENSORS.items():
            if part in name:
                raise ModelError(f"tensor {name} is {kind}; {KNOWN}")


# -- speculators -----------------------------------------------------------------------------------


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
    second = kind == "dflash2"
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
