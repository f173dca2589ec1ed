"""The shape of a DFlash drafter, read from a z-lab config.json and checked field by field.

The format of the authors' package `dflash` 0.1.0, which SGLang and vLLM read too. A field that we
would not honour is refused by name, so that no drafter runs as something else than it was trained
to be. Newer releases keep some fields in `dflash_config`, older ones beside it: both are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields, first_with
from paceline.models.config import Attention, ModelConfig, read_config
from paceline.models.dflash.foreign import refuse_foreign
from paceline.models.dflash.sight import read_attention
from paceline.models.rope import rope_type

HEAD_DIM = 128  # Qwen3's, where a config names none
BLOCK_SIZE = 16  # where a config names none


@dataclass(frozen=True, slots=True)
class SecondGeneration:
    """The additions of DFlash 2: a dynamic convolution in the block, a selector of candidates."""

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
    """Return the authors' choice of `count` layers to tap: evenly from second to third last."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def read_dflash_config(hf: Mapping[str, object]) -> DFlashConfig:
    """Read a z-lab config.json. Raises ModelError naming the field and what would be right."""
    fields = ConfigFields(hf)
    extra = fields.section("dflash_config", prefix="dflash_config.")
    refuse_foreign(fields, extra)
    _check_rope(fields)
    bias = fields.flag("attention_bias")
    layers = read_config(
        fields, "dflash", qkv_bias=bias, o_bias=bias, qk_norm=True, head_dim=HEAD_DIM
    )
    target_layers = _integer(fields, extra, "num_target_layers")
    block_size = _integer(fields, extra, "block_size") or BLOCK_SIZE
    if block_size < 2:
        raise fields.error("block_size", block_size, "at least 2")

    def number(key: str, default: float, zero: bool = False) -> float:
        return first_with(key, extra, fields).number(key, default=default, zero=zero)

    config = DFlashConfig(
        layers=layers,
        attention=read_attention(fields, extra, layers.num_layers),
        target_layer_ids=_read_layer_ids(fields, extra, target_layers, layers.num_layers),
        block_size=block_size,
        mask_token_id=_read_mask(fields, extra),
        num_target_layers=target_layers,
        second=_read_second(fields, extra, layers.hidden_size),
        embedding_scale=number("input_embedding_scale", 1),
        output_multiplier=number("output_multiplier", 1),
        softcap=number("final_logit_softcapping", 0, zero=True) or None,
        special_ids=_special_ids(fields),
    )
    check_mask(config, layers.vocab_size, config.special_ids, "config.json")
    return config


def check_mask(
    config: DFlashConfig, vocab_size: int, special: tuple[tuple[str, int], ...], where: str
) -> None:
    """Raise ModelError where the mask token is none of the vocabulary, or has another meaning."""
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


def _check_rope(fields: ConfigFields) -> None:
    """Raise ModelError where rope_theta is missing, or where the two spellings of RoPE, those of
    transformers 4 and 5, contradict each other."""
    new, old = fields.section("rope_parameters"), fields.section("rope_scaling")
    theta, given = fields.get("rope_theta"), first_with("rope_theta", new, old).get("rope_theta")
    if theta is None and given is None:
        raise ModelError(
            "config.json: rope_theta is missing, and engines differ in what they take instead; "
            "expected the value the drafter was trained with"
        )
    if theta is not None and given is not None and theta != given:
        raise ModelError(
            f"config.json: rope_theta is {theta}, rope_parameters.rope_theta is {given}; "
            "expected one value"
        )
    if not (new.values and old.values):
        return
    for key in sorted(({*new.values, *old.values} | {"rope_type"}) - {"type", "rope_theta"}):
        pair = [rope_type(rope) if key == "rope_type" else rope.get(key) for rope in (new, old)]
        if pair[0] != pair[1]:
            raise ModelError(
                f"config.json: {key} is {pair[0]!r} in rope_parameters and {pair[1]!r} in "
                "rope_scaling; expected one value"
            )


def _integer(fields: ConfigFields, extra: ConfigFields, key: str) -> int | None:
    """Read a whole number that may stand in both places, but only once or alike."""
    values = {source.integer(key) for source in (fields, extra) if source.has(key)}
    if len(values) > 1:
        raise ModelError(
            f"config.json: {key} is {fields.get(key)}, dflash_config.{key} is {extra.get(key)}; "
            "expected one"
        )
    return values.pop() if values else None


def _read_mask(fields: ConfigFields, extra: ConfigFields) -> int:
    value = first_with("mask_token_id", extra, fields).get("mask_token_id")
    if type(value) is not int:
        raise extra.error("mask_token_id", value, "a token id")
    return value


def _special_ids(fields: ConfigFields) -> tuple[tuple[str, int], ...]:
    special = []
    for key, name in (("pad_token_id", "padding token"), ("eos_token_id", "end of text")):
        value = fields.get(key)
        tokens = value if isinstance(value, list) else [] if value is None else [value]
        special += [(name, int(token)) for token in tokens]
    return tuple(special)


def _read_layer_ids(
    fields: ConfigFields, extra: ConfigFields, target_layers: int | None, draft_layers: int
) -> tuple[int, ...]:
    key = "target_layer_ids"
    ids = first_with(key, extra, fields).get(key)
    if ids is None and target_layers is not None:
        ids = default_layer_ids(target_layers, draft_layers)
    integers = isinstance(ids, list | tuple) and all(type(layer) is int for layer in ids)
    if not ids or not integers or len(set(ids)) != len(ids):
        raise extra.error(key, ids, "distinct layer numbers of the target, counted from 0")
    wrong = [layer for layer in ids if layer < 0 or layer >= (target_layers or layer + 1)]
    if wrong:
        most = "" if target_layers is None else f" to {target_layers - 1}"
        raise ModelError(
            f"config.json: dflash_config.{key} has {wrong[0]}; expected layers 0{most}"
        )
    return tuple(ids)


def _read_second(fields: ConfigFields, extra: ConfigFields, hidden: int) -> SecondGeneration | None:
    if "DFlash2DraftModel" not in fields.words("architectures"):
        return None
    keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    second = SecondGeneration(*(first_with(key, extra, fields).integer(key) for key in keys))
    if hidden % second.group_size:
        expected = f"a divisor of hidden_size ({hidden})"
        raise fields.error("conv_group_size", second.group_size, expected)
    return second
