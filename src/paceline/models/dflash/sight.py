"""Read from a z-lab config which draft layers slide, over how many tokens, and which are causal."""

from __future__ import annotations

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.config import Attention


def read_attention(
    fields: ConfigFields, extra: ConfigFields, num_layers: int
) -> tuple[Attention, ...]:
    """Read `layer_types`, else `use_swa`. A causal flag for all layers wins over the rule that
    sliding layers are causal and full ones are not."""
    sliding = _sliding_layers(fields, extra, num_layers)
    flag = (fields, "is_causal") if fields.has("is_causal") else (extra, "causal")
    causal = flag[0].flag(flag[1]) if flag[0].has(flag[1]) else None
    window = _read_window(fields, extra) if any(sliding) else None
    return tuple(
        Attention(window if slides else None, slides if causal is None else causal)
        for slides in sliding
    )


def _sliding_layers(fields: ConfigFields, extra: ConfigFields, num_layers: int) -> list[bool]:
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
    return sliding if any(sliding) or not extra.flag("use_swa") else [True] * num_layers


def _read_window(fields: ConfigFields, extra: ConfigFields) -> int:
    slides, key = fields.flag("use_sliding_window"), "swa_window_size"
    windows = [extra.get(key), fields.get("sliding_window") if slides else None]
    if None not in windows and windows[0] != windows[1]:
        raise ModelError(
            f"config.json: sliding_window is {windows[1]}, dflash_config.{key} is {windows[0]}; "
            "expected one value"
        )
    if extra.has(key):
        source = extra
    elif fields.has("sliding_window") and not slides:
        expected = "true: layer_types has sliding layers"
        raise fields.error("use_sliding_window", slides, expected)
    else:
        source, key = fields, "sliding_window"
    window = source.get(key)
    if type(window) is not int or window < 1:
        raise source.error(key, window, "a number of tokens: layer_types has sliding layers")
    return window
