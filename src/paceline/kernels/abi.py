"""The structures of native/abi.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p


class Matrix(ctypes.Structure):
    """Packed weights: see kernels/packing.py for the layout."""

    _fields_ = (("panels", c_void_p), ("bias", c_void_p), ("n", c_int64), ("k", c_int64))


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
    )


class Model(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("hidden", "intermediate", "heads", "kv_heads", "head_dim")),
        *((name, c_int64) for name in ("layers", "vocab", "rotary_half")),
        ("epsilon", c_float),
        ("scale", c_float),
        ("layer", ctypes.POINTER(Layer)),
        ("head", Matrix),
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("rows", "sequences", "outputs", "table_stride")),
        ("taps", c_int64),
        ("threads", c_int64),
        *((name, c_void_p) for name in ("ids", "positions", "seq_starts", "block_tables")),
        *(
            (name, c_void_p)
            for name in ("logit_rows", "tap_layers", "logits", "argmax", "features")
        ),
    )
