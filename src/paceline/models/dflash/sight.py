"""Which draft layers slide, over how many tokens, and which are causal, from a z-lab config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core import ModelError
from paceline.models.config import Attention


def read_attention(
    hf: Mapping[str, Any], extra: Mapping[str, Any], num_layers: int
) -> tuple[Attention, ...]:
    """`layer_types`, else `use_swa`; a causal flag for all layers wins over the rule that sliding
    layers are causal and full ones are not."""
    sliding = _sliding_layers(hf, extra, num_layers)
    causal = hf.get("is_causal")
    causal = extra.get("causal") if causal is None else causal
    window = _read_window(hf, extra) if any(sliding) else None
    return tuple(
        Attention(window if slides else None, slides if causal is None else bool(causal))
        for slides in sliding
    )


def _sliding_layers(hf: Mapping[str, Any], extra: Mapping[str, Any], num_layers: int) -> list[bool]:
    types = hf.get("layer_types")
    if not types:
        slides, first = bool(hf.get("use_sliding_window")), hf.get("max_window_layers")
        first = 28 if first is None else int(first)
        sliding = [slides and layer >= first for layer in range(num_layers)]
    elif len(types) == num_layers:
        sliding = [kind == "sliding_attention" for kind in types]
    else:
        raise ModelError(
            f"config.json: layer_types has {len(types)} entries; expected one for each of "
            f"{num_layers} layers"
        )
    # An export for other engines: all layers slide, whatever layer_types says.
    return sliding if any(sliding) or not extra.get("use_swa") else [True] * num_layers


def _read_window(hf: Mapping[str, Any], extra: Mapping[str, Any]) -> int:
    key, window = "dflash_config.swa_window_size", extra.get("swa_window_size")
    other = hf.get("sliding_window") if hf.get("use_sliding_window") else None
    if window is not None and other is not None and window != other:
        raise ModelError(
            f"config.json: sliding_window is {other}, {key} is {window}; expected one value"
        )
    if window is None:
        key, window = "sliding_window", hf.get("sliding_window")
        if window is not None and not hf.get("use_sliding_window"):
            raise ModelError(
                f"config.json: use_sliding_window is {hf.get('use_sliding_window')!r}, and "
                "layer_types has sliding layers; expected true"
            )
    if type(window) is not int or window < 1:
        raise ModelError(
            f"config.json: {key} is {window!r}, and layer_types has sliding layers; expected a "
            "number of tokens"
        )
    return window
