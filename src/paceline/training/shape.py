"""The shape of a new drafter: the target's own width, and a mask token that text never holds."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch

from paceline.core import InvalidRequest
from paceline.models.any_target import TargetShape
from paceline.models.dflash.checkpoint import DFlashCheckpoint
from paceline.models.dflash.config import DFlashConfig, default_layer_ids
from paceline.models.dflash.module import DFlashModule
from paceline.models.tokenizer import Tokenizer
from paceline.training.config import DEFAULTS, OF_BLOCKS, TrainConfig

CONVOLUTION = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_top_k": 16}
# Entries of config.json that are the same for every new drafter.
FIXED: dict[str, object] = {
    "model_type": "qwen3",
    "is_causal": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "dtype": "bfloat16",
}

_seeded = threading.Lock()  # torch has one source of random numbers for all threads


def first_weights(
    seed: int, shape: DFlashConfig, checkpoint: DFlashCheckpoint | None
) -> DFlashModule:
    """Return a drafter with random weights, the same for the same seed, or with a checkpoint's."""
    with _seeded:
        torch.manual_seed(seed)
        module = DFlashModule(shape)
    if checkpoint is not None:
        module.load_state_dict(dict(checkpoint.weights))
    return module


def drafter_json(config: TrainConfig, target: TargetShape, mask_token: int) -> dict[str, object]:
    """Return a config.json in z-lab's format for a drafter of this target."""
    layers = int(config.value("layers"))
    taps = config.taps or min(int(DEFAULTS["taps"]), target.num_layers - 1)
    if taps > target.num_layers - 1:
        expected = f"at most {target.num_layers - 1}: the target's layers but the last"
        raise InvalidRequest("taps", taps, expected)
    second = config.generation == "dflash2"
    extra: dict[str, object] = {
        "mask_token_id": mask_token,
        "target_layer_ids": tapped_layers(target.num_layers, taps),
        **(CONVOLUTION | {"selector_rank": int(config.value("selector_rank"))} if second else {}),
    }
    return FIXED | {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "block_size": int(config.value("block")),
        "dflash_config": extra,
        "num_target_layers": target.num_layers,
        "num_hidden_layers": layers,
        **_window_entries(config.window, layers),
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_theta": target.rope_theta,
        "max_position_embeddings": target.max_position_embeddings,
        "vocab_size": target.vocab_size,
    }


def _window_entries(window: int | None, layers: int) -> dict[str, object]:
    """Return the entries of config.json that give every layer this window."""
    sliding = window is not None
    return {
        "layer_types": ["sliding_attention" if sliding else "full_attention"] * layers,
        "use_sliding_window": sliding,
        "sliding_window": window,
        "max_window_layers": 0 if sliding else layers,
    }


def tapped_layers(layers: int, count: int) -> list[int]:
    """Return the authors' choice of `count` layers, ascending. A target that is too shallow for it
    is tapped at the layers before its last."""
    spread = sorted(set(default_layer_ids(layers, count))) if layers > 4 else []
    if len(spread) == count and spread[0] >= 0 and spread[-1] < layers - 1:
        return spread
    return list(range(layers - 1))[-count:]


def reshaped(config: TrainConfig, checkpoint: DFlashCheckpoint) -> dict[str, object]:
    """Return the config.json of a drafter that training goes on from, with another block if the run
    asks for it, and with a window where the drafter has none.

    Raises InvalidRequest for a setting that the weights decide already.
    """
    shape = checkpoint.config
    fixed = {
        "layers": shape.layers.num_layers,
        "taps": len(shape.target_layer_ids),
        "mask_token": shape.mask_token_id,
        "generation": "dflash" if shape.second is None else "dflash2",
        "selector_rank": shape.second and shape.second.selector_rank,
    }
    sees_all = all(kind.window is None for kind in shape.attention)
    if not sees_all:
        fixed["window"] = shape.window or "none: some of its layers have one, others see all"
    for name, value in fixed.items():
        if getattr(config, name) not in (None, value):
            expected = f"{value}, as the drafter {checkpoint.path.name} has it, or no init"
            raise InvalidRequest(name, getattr(config, name), expected)
    hf = dict(checkpoint.config_json)
    given = hf.get("dflash_config")
    extra = dict(given) if isinstance(given, dict) else {}
    if config.block is not None:
        extra.pop("block_size", None)
        hf["block_size"] = config.block
    if config.window is not None and sees_all:
        hf |= _window_entries(config.window, shape.layers.num_layers)
        hf["is_causal"] = shape.attention[0].causal  # else layers with a window would be causal
    return hf | {"dflash_config": extra}


def check_fit(
    shape: DFlashConfig, target: TargetShape, eos_ids: Iterable[int], seen: Iterable[int]
) -> None:
    """Raise InvalidRequest for a drafter that serving would refuse: another width or depth, the
    last layer tapped, or a mask token that texts hold. `seen` are the tokens of the training
    texts."""
    for name, size, needed in (
        ("hidden_size", shape.layers.hidden_size, target.hidden_size),
        ("vocab_size", shape.layers.vocab_size, target.vocab_size),
        ("num_target_layers", shape.num_target_layers or target.num_layers, target.num_layers),
    ):
        if size != needed:
            raise InvalidRequest("init", f"{name} {size}", f"a drafter for {name} {needed}")
    if max(shape.target_layer_ids) >= target.num_layers - 1:
        expected = f"layers 0 to {target.num_layers - 2} of the target"
        raise InvalidRequest("init", f"target_layer_ids {shape.target_layer_ids}", expected)
    mask = shape.mask_token_id
    if mask in set(eos_ids) | set(seen) or mask >= target.vocab_size:
        expected = "an id of the vocabulary that neither ends a text nor stands in the training set"
        raise InvalidRequest("mask_token", mask, expected)


def mask_token(
    tokenizer: Tokenizer, embedding: torch.Tensor, eos_ids: Iterable[int], seen: Iterable[int]
) -> int:
    """Choose a token for the mask slots: special, without a role, and in none of the training
    texts; else a row of the embedding that no token has.

    embedding [vocabulary, hidden]. Raises InvalidRequest (field `mask_token`) where there is none.
    """
    used = {*seen, *eos_ids}
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    roles |= set(tokenizer(tokenizer.chat_template or "", add_special_tokens=False)["input_ids"])
    special = sorted(
        token for token, added in tokenizer.added_tokens_decoder.items() if added.special
    )
    beyond = range(len(tokenizer), len(embedding))
    for token in [*special, *beyond]:
        if token not in used | roles and token < len(embedding) and embedding[token].any():
            return int(token)
    expected = "an id of the vocabulary that text never contains; none was found"
    raise InvalidRequest("mask_token", None, expected)


def check_shape(config: TrainConfig, shape: DFlashConfig) -> None:
    """Raise InvalidRequest for a setting that the drafter's shape leaves without effect."""
    short = config.short_block
    if short is not None and short >= shape.block_size:
        raise InvalidRequest("short_block", short, f"less than the block's {shape.block_size}")
    slots = shape.block_size - 1
    if config.round_costs and len(config.round_costs) != slots:
        given, expected = list(config.round_costs), f"{slots} numbers, one for each drafted token"
        raise InvalidRequest("round_costs", given, expected)
    if config.weights != "dpace" and config.mix.keys() <= OF_BLOCKS and shape.second is None:
        expected = "an objective of single slots in mix, such as ce, or generation dflash2"
        raise InvalidRequest("weights", config.weights, expected)
    for name in ("selector_share", "selector_rank"):
        if getattr(config, name) is not None and shape.second is None:
            raise InvalidRequest(name, getattr(config, name), "generation dflash2")
