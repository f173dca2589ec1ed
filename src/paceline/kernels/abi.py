"""The structures of native/abi.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p


class Matrix(ctypes.Structure):
    """Packed weights: see kernels/packing.py for the layout."""

    _fields_ = (
        *((name, c_void_p) for name in ("panels", "bias", "scales")),
        *((name, c_int64) for name in ("n", "k")),
    )


class Convolution(ctypes.Structure):
    _fields_ = (("kernels", Matrix), ("base", c_void_p))


class Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", Matrix),
        ("o", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("window", c_int64),
        ("bidirectional", c_int64),
        ("attention_convolution", Convolution),
        ("mlp_convolution", Convolution),
    )


class Model(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("hidden", "intermediate", "heads", "kv_heads", "head_dim")),
        *((name, c_int64) for name in ("layers", "vocab", "rotary_half", "taps", "groups")),
        *((name, c_float) for name in ("epsilon", "scale", "embedding_scale")),
        ("layer", ctypes.POINTER(Layer)),
        ("head", Matrix),
        ("embedding", c_void_p),
        ("embedding_panels", c_void_p),
        ("mask_id", c_int64),
        *((name, c_void_p) for name in ("mask_row", "final_norm", "cos", "sin")),
        ("context", Matrix),
        ("context_norm", c_void_p),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "sequences", "outputs", "table_stride")),
        ("taps", c_int64),
        ("threads", c_int64),
        *((name, c_void_p) for name in ("ids", "positions", "seq_starts", "block_tables")),
        *((name, c_void_p) for name in ("logit_rows", "first", "tap_layers", "logits", "argmax")),
        ("finite", c_void_p),
        *((name, c_void_p) for name in ("confidence", "hidden", "features", "ticks")),
    )


class Context(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "stride", "threads")),
        *((name, c_void_p) for name in ("features", "positions", "slots")),
    )
