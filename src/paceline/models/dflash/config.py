"""The shape of a DFlash drafter, read from a z-lab config.json: the format of the authors' package
`dflash` 0.1.0, which SGLang and vLLM read too. A field that we would not honour is refused by name,
so that no drafter runs as something else than it was trained to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields, first_with
from paceline.models.config import Attention, ModelConfig, read_config, token_ids
from paceline.models.dflash.formats import KNOWN_KEYS, NESTED_KEYS, SECOND_KEYS, refuse_foreign
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
    `layers.vocab_size`, are the target's, whose layers `target_layer_ids` count from 0."""

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

    @property
    def max_draft_len(self) -> int:
        return self.block_size - 1

    @property
    def feature_size(self) -> int:
        return len(self.target_layer_ids) * self.layers.hidden_size

    @property
    def window(self) -> int | None:
        """The most tokens of context that any layer sees; None where one sees all."""
        windows = [kind.window for kind in self.attention if kind.window is not None]
        return max(windows) if len(windows) == len(self.attention) else None

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
    fields = _joined_fields(hf)
    _check_rope(fields)
    bias = fields.flag("attention_bias")
    layers = read_config(
        fields, "dflash", qkv_bias=bias, o_bias=bias, qk_norm=True, head_dim=HEAD_DIM
    )
    mask, target_layers = fields.get("mask_token_id"), None
    if type(mask) is not int:
        raise fields.error("mask_token_id", mask, "a token id")
    if fields.has("num_target_layers"):
        target_layers = fields.integer("num_target_layers")
    config = DFlashConfig(
        layers=layers,
        attention=_read_attention(fields, layers.num_layers),
        target_layer_ids=_read_layer_ids(fields, target_layers, layers.num_layers),
        block_size=fields.integer("block_size", default=BLOCK_SIZE),
        mask_token_id=mask,
        num_target_layers=target_layers,
        second=_read_second(fields, layers.hidden_size),
        embedding_scale=fields.number("input_embedding_scale", default=1),
        output_multiplier=fields.number("output_multiplier", default=1),
        softcap=fields.number("final_logit_softcapping", default=0, zero=True) or None,
    )
    if config.block_size < 2:
        raise fields.error("block_size", config.block_size, "at least 2")
    padding, ends = (token_ids(fields.get(f"{name}_token_id")) for name in ("pad", "eos"))
    special = [("padding token", token) for token in padding]
    special += [("end of text", token) for token in ends]
    check_mask(config, layers.vocab_size, tuple(special), "config.json")
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


class _JoinedFields(ConfigFields):
    """Errors name the fields of `nested` where they stand: in `dflash_config`."""

    nested: Collection[str] = ()

    def error(self, names: tuple[str, ...] | str, value: object, expected: str) -> ModelError:
        names = (names,) if isinstance(names, str) else names
        places = tuple(f"dflash_config.{n}" if n in self.nested else n for n in names)
        return super().error(places, value, expected)


def _joined_fields(hf: Mapping[str, object]) -> ConfigFields:
    """Return the fields of config.json with those of its `dflash_config`, where newer releases keep
    what older ones keep beside it. Raises ModelError where the two contradict each other, and for a
    drafter of another kind."""
    extra = {
        key: value
        for key, value in ConfigFields(hf).section("dflash_config").values.items()
        if value is not None
    }
    top = {key: value for key, value in hf.items() if key not in NESTED_KEYS}
    for key in KNOWN_KEYS:
        _check_equal(key, top.get(key), f"dflash_config.{key}", extra.get(key))
    fields = _JoinedFields({**top, **extra})
    fields.nested = extra.keys()
    refuse_foreign(fields, extra)
    return fields


def _check_equal(name: str, value: object, other_name: str, other: object) -> None:
    if None not in (value, other) and value != other:
        raise ModelError(
            f"config.json: {name} is {value}, {other_name} is {other}; expected one value"
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
    _check_equal("rope_theta", theta, "rope_parameters.rope_theta", given)
    if not (new.values and old.values):
        return
    for key in sorted(({*new.values, *old.values} | {"rope_type"}) - {"type", "rope_theta"}):
        pair = [rope_type(rope) if key == "rope_type" else rope.get(key) for rope in (new, old)]
        if pair[0] != pair[1]:
            raise ModelError(
                f"config.json: {key} is {pair[0]!r} in rope_parameters and {pair[1]!r} in "
                "rope_scaling; expected one value"
            )


def _read_layer_ids(
    fields: ConfigFields, target_layers: int | None, draft_layers: int
) -> tuple[int, ...]:
    key = "target_layer_ids"
    ids = fields.get(key)
    if ids is None and target_layers is not None:
        ids = default_layer_ids(target_layers, draft_layers)
    integers = isinstance(ids, list | tuple) and all(type(layer) is int for layer in ids)
    if not ids or not integers or len(set(ids)) != len(ids):
        raise fields.error(key, ids, "distinct layer numbers of the target, counted from 0")
    wrong = [layer for layer in ids if layer < 0 or layer >= (target_layers or layer + 1)]
    if wrong:
        most = "" if target_layers is None else f" to {target_layers - 1}"
        raise ModelError(f"config.json: {key} has {wrong[0]}; expected layers 0{most}")
    return tuple(ids)


def _read_second(fields: ConfigFields, hidden: int) -> SecondGeneration | None:
    if "DFlash2DraftModel" not in fields.words("architectures"):
        return None
    second = SecondGeneration(*(fields.integer(key) for key in SECOND_KEYS))
    if hidden % second.group_size:
        expected = f"a divisor of hidden_size ({hidden})"
        raise fields.error("conv_group_size", second.group_size, expected)
    return second


# -- which layers slide, over how many tokens, and which are causal --------------------------------


def _read_attention(fields: ConfigFields, num_layers: int) -> tuple[Attention, ...]:
    """Read `layer_types`, else `use_swa`. A causal flag for all layers wins over the rule that
    sliding layers are causal and full ones are not."""
    sliding = _sliding_layers(fields, num_layers)
    flags = [fields.flag(key) for key in ("is_causal", "causal") if fields.has(key)]
    window = _read_window(fields) if any(sliding) else None
    return tuple(
        Attention(window if slides else None, flags[0] if flags else slides) for slides in sliding
    )


def _sliding_layers(fields: ConfigFields, num_layers: int) -> list[bool]:
    types = fields.words("layer_types")
    if not types:
        slides = fields.flag("use_sliding_window")
        first = fields.integer("max_window_layers", default=28, low=0)
        sliding = [slides and layer >= first for layer in range(num_layers)]
    elif len(types) == num_layers:
        sliding = [kind == "sliding_attention" for kind in types]
    else:
        raise ModelError(
            f"config.json: layer_types has {len(types)} entries; expected one for each of "
            f"{num_layers} layers"
        )
    # An export for other engines: all layers slide, whatever layer_types says.
    return sliding if any(sliding) or not fields.flag("use_swa") else [True] * num_layers


def _read_window(fields: ConfigFields) -> int:
    slides, key = fields.flag("use_sliding_window"), "swa_window_size"
    given = fields.get("sliding_window") if slides else None
    _check_equal("sliding_window", given, f"dflash_config.{key}", fields.get(key))
    if not fields.has(key):
        if fields.has("sliding_window") and not slides:
            expected = "true: layer_types has sliding layers"
            raise fields.error("use_sliding_window", slides, expected)
        key = "sliding_window"
    window = fields.get(key)
    if type(window) is not int or window < 1:
        raise fields.error(key, window, "a number of tokens: layer_types has sliding layers")
    return window
