"""What a DFlash drafter is made of, read from a z-lab config.json and checked field by field.

The format of the authors' package `dflash` 0.1.0, which SGLang and vLLM read too. What we would not
honour is refused by name, so that no drafter runs as something else than it was trained to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core import ModelError
from paceline.models.config import Attention, ModelConfig, integer, number, read_config
from paceline.models.dflash.sight import read_attention

ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
HEAD_DIM = 128  # Qwen3's, where a config names none
BLOCK_SIZE = 16  # where a config names none
# Other drafters that look alike: (key in the config or in dflash_config, what it belongs to).
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
KNOWN = "known are DFlash and DFlash 2 drafters in z-lab's or speculators' format"


@dataclass(frozen=True, slots=True)
class SecondGeneration:
    """What DFlash 2 adds: a dynamic convolution in the block, and a selector of candidates."""

    kernel_size: int
    group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """A drafter's shape. `layers` is a decoder stack without embedding and head: those, and
    `layers.vocab_size`, are the target's.

    `target_layer_ids` count the target's layers from 0; the drafter sees what they put out.
    """

    layers: ModelConfig
    attention: tuple[Attention, ...]
    target_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    num_target_layers: int | None = None
    second: SecondGeneration | None = None
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    special_ids: tuple[tuple[str, int], ...] = ()  # pad and eos, which the mask must not be

    @property
    def max_draft_len(self) -> int:
        return self.block_size - 1

    @property
    def feature_size(self) -> int:
        return len(self.target_layer_ids) * self.layers.hidden_size

    @property
    def generation(self) -> str:
        return "DFlash" if self.second is None else "DFlash 2"


def default_layer_ids(target_layers: int, count: int) -> tuple[int, ...]:
    """The authors' choice of `count` layers to tap: evenly from the second to the third last."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def read_dflash_config(hf: Mapping[str, Any]) -> DFlashConfig:
    """Reads a z-lab config.json. Raises ModelError naming the field and what would be right."""
    extra = hf.get("dflash_config") or {}
    if not isinstance(extra, Mapping):
        raise ModelError(f"config.json: dflash_config is {extra!r}; expected an object")
    refuse_foreign(hf, extra)
    _check_rope(hf)
    bias = bool(hf.get("attention_bias", False))
    layers = read_config(hf, "dflash", qkv_bias=bias, o_bias=bias, qk_norm=True, head_dim=HEAD_DIM)
    second = _read_second(hf, extra, layers.hidden_size)
    target_layers = _optional(hf, extra, "num_target_layers")
    block_size = _optional(hf, extra, "block_size") or BLOCK_SIZE
    if block_size < 2:
        raise ModelError(f"config.json: block_size is {block_size}; expected at least 2")
    config = DFlashConfig(
        layers=layers,
        attention=read_attention(hf, extra, layers.num_layers),
        target_layer_ids=_read_layer_ids(hf, extra, target_layers, layers.num_layers),
        block_size=block_size,
        mask_token_id=_read_mask(hf, extra),
        num_target_layers=target_layers,
        second=second,
        embedding_scale=float(_scalar(hf, extra, "input_embedding_scale", 1.0)),
        output_multiplier=float(_scalar(hf, extra, "output_multiplier", 1.0)),
        softcap=_softcap(hf, extra),
        special_ids=_special_ids(hf),
    )
    check_mask(config, layers.vocab_size, config.special_ids, "config.json")
    return config


def check_mask(
    config: DFlashConfig, vocab_size: int, special: tuple[tuple[str, int], ...], where: str
) -> None:
    """Raises ModelError where the mask token is none of the vocabulary, or has another meaning."""
    mask = config.mask_token_id
    if not 0 <= mask < vocab_size:
        raise ModelError(
            f"{where}: mask_token_id is {mask}; expected an id of the vocabulary, "
            f"0 to {vocab_size - 1}"
        )
    for name, token in special:
        if mask == token:
            raise ModelError(
                f"{where}: mask_token_id {mask} is the {name} as well; expected a token that text "
                "never contains"
            )


def refuse_foreign(hf: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Raises ModelError for drafters of other kinds, naming the kind."""
    names = [str(name) for name in hf.get("architectures") or []]
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
    projector = extra.get("projector_type")
    if projector is not None:
        raise ModelError(
            f"config.json: dflash_config.projector_type {projector!r} (a Domino drafter) is not "
            f"read; {KNOWN}"
        )
    for key, kind in FOREIGN_KEYS:
        value = extra.get(key, hf.get(key))
        if value and not (key == "attention_value_scale" and value == 1):
            raise ModelError(f"config.json: {key} ({kind}) is not supported; {KNOWN}")
    unknown = sorted(set(extra) - set(KNOWN_KEYS) - {"projector_type", *dict(FOREIGN_KEYS)})
    if unknown:
        raise ModelError(
            f"config.json: dflash_config.{unknown[0]} is not known; known are "
            f"{', '.join(KNOWN_KEYS)}"
        )


def _check_rope(hf: Mapping[str, Any]) -> None:
    """Exports write RoPE twice, for transformers 4 and 5: both must say the same, one at least."""
    new, old = hf.get("rope_parameters") or {}, hf.get("rope_scaling") or {}
    theta, given = hf.get("rope_theta"), new.get("rope_theta", old.get("rope_theta"))
    if theta is None and given is None:
        raise ModelError(
            "config.json: rope_theta is missing, and engines differ in what they take instead; "
            "expected the value the drafter was trained with"
        )
    if theta is not None and given is not None and float(theta) != float(given):
        raise ModelError(
            f"config.json: rope_theta is {theta}, rope_parameters.rope_theta is {given}; "
            "expected one value"
        )
    if not (new and old):
        return
    for key in sorted(({*new, *old} | {"rope_type"}) - {"type", "rope_theta"}):
        pair = [_rope_value(rope, key) for rope in (new, old)]
        if pair[0] != pair[1]:
            raise ModelError(
                f"config.json: {key} is {pair[0]!r} in rope_parameters and {pair[1]!r} in "
                "rope_scaling; expected one value"
            )


def _rope_value(rope: Mapping[str, Any], key: str) -> Any:
    return (
        rope.get("rope_type", rope.get("type", "default")) if key == "rope_type" else rope.get(key)
    )


def _optional(hf: Mapping[str, Any], extra: Mapping[str, Any], key: str) -> int | None:
    """A whole number that newer releases keep in dflash_config, older ones beside it."""
    found = {float(number(source, key)) for source in (extra, hf) if source.get(key) is not None}
    if len(found) > 1:
        raise ModelError(
            f"config.json: {key} is {hf[key]}, dflash_config.{key} is {extra[key]}; expected one"
        )
    return integer({key: found.pop()}, key) if found else None


def _scalar(hf: Mapping[str, Any], extra: Mapping[str, Any], key: str, default: float) -> float:
    return number(extra if extra.get(key) is not None else hf, key, default)


def _softcap(hf: Mapping[str, Any], extra: Mapping[str, Any]) -> float | None:
    value = extra.get("final_logit_softcapping", hf.get("final_logit_softcapping"))
    return float(value) if value else None


def _read_mask(hf: Mapping[str, Any], extra: Mapping[str, Any]) -> int:
    value = extra.get("mask_token_id", hf.get("mask_token_id"))
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(
            f"config.json: dflash_config.mask_token_id is {value!r}; expected a token id"
        )
    return value


def _special_ids(hf: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    found = []
    for key, name in (("pad_token_id", "padding token"), ("eos_token_id", "end of text")):
        value = hf.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        found += [(name, int(token)) for token in values]
    return tuple(found)


def _read_layer_ids(
    hf: Mapping[str, Any], extra: Mapping[str, Any], target_layers: int | None, draft_layers: int
) -> tuple[int, ...]:
    ids = extra.get("target_layer_ids", hf.get("target_layer_ids"))
    if ids is None and target_layers is not None:
        ids = default_layer_ids(target_layers, draft_layers)
    whole = isinstance(ids, list | tuple) and all(type(layer) is int for layer in ids)
    if not ids or not whole or len(set(ids)) != len(ids):
        raise ModelError(
            f"config.json: dflash_config.target_layer_ids is {ids!r}; expected distinct layer "
            "numbers of the target, counted from 0"
        )
    wrong = [layer for layer in ids if layer < 0 or layer >= (target_layers or layer + 1)]
    if wrong:
        most = "" if target_layers is None else f" to {target_layers - 1}"
        raise ModelError(
            f"config.json: dflash_config.target_layer_ids has {wrong[0]}; expected layers 0{most}"
        )
    return tuple(ids)


def _read_second(
    hf: Mapping[str, Any], extra: Mapping[str, Any], hidden: int
) -> SecondGeneration | None:
    if "DFlash2DraftModel" not in hf["architectures"]:
        return None
    keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    values = [integer(extra if extra.get(key) is not None else hf, key) for key in keys]
    second = SecondGeneration(*values)
    if hidden % second.group_size:
        raise ModelError(
            f"config.json: conv_group_size is {second.group_size}; expected a divisor of "
            f"hidden_size ({hidden})"
        )
    return second
