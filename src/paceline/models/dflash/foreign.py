"""Drafters that look like DFlash drafters and are none: refused by their kind's name."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields, first_with

ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
# (field of the config or of dflash_config, the kind of drafter or option that it belongs to)
FOREIGN_KEYS = (
    ("markov_rank", "a DSpark drafter"),
    ("markov_head_type", "a DSpark drafter"),
    ("enable_confidence_head", "a DSpark drafter"),
    ("gru_hidden_dim", "a Domino drafter"),
    ("pure_draft_prefix_len", "a Domino drafter"),
    ("shift_label", "a Domino drafter"),
    ("attention_sink_bias", "attention sinks"),
    ("add_swa_attention_sink_bias", "attention sinks"),
    ("attention_value_scale", "scaled attention values"),
    ("sample_from_anchor", "drafting from the anchor's own slot"),
)
# Keys of dflash_config that are read, or say nothing that a network computes.
KNOWN_KEYS = (
    "mask_token_id", "mask_token", "target_layer_ids", "num_target_layers", "block_size",
    "causal", "use_swa", "swa_window_size", "input_embedding_scale", "output_multiplier",
    "final_logit_softcapping", "conv_kernel_size", "conv_group_size", "selector_rank",
    "selector_top_k",
)  # fmt: skip
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


def refuse_foreign(fields: ConfigFields, extra: ConfigFields) -> None:
    """Raise ModelError for a drafter of another kind, naming the kind.

    `fields` are those of config.json, `extra` those of its dflash_config.
    """
    names = fields.words("architectures")
    for name in names:
        for part, kind in FOREIGN_ARCHITECTURES.items():
            if part.lower() in name.lower():
                raise ModelError(f"config.json: architecture {name}: {kind} are not read; {KNOWN}")
    if not any(name in ARCHITECTURES for name in names):
        named = ", ".join(names) or "none named"
        raise ModelError(
            f"config.json: architecture {named} is no DFlash drafter; "
            f"expected {' or '.join(ARCHITECTURES)}"
        )
    if projector := extra.get("projector_type"):
        raise ModelError(
            f"config.json: dflash_config.projector_type {projector!r} (a Domino drafter) is not "
            f"read; {KNOWN}"
        )
    for key, kind in FOREIGN_KEYS:
        value = first_with(key, extra, fields).get(key)
        if value and not (key == "attention_value_scale" and value == 1):
            raise ModelError(f"config.json: {key} ({kind}) is not supported; {KNOWN}")
    unknown = sorted(set(extra.values) - set(KNOWN_KEYS) - {"projector_type", *dict(FOREIGN_KEYS)})
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
