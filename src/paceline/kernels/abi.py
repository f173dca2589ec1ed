"""The structures of native/abi.h, field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import c_float, c_int64, c_void_p
from typing import TypeVar

Kind = TypeVar("Kind")


def _fields(kind: Kind, names: str) -> Iterator[tuple[str, Kind]]:
    return ((name, kind) for name in names.split())


class Matrix(ctypes.Structure):
    """Packed weights: see kernels/packing.py for the layout."""

    _fields_ = (*_fields(c_void_p, "panels bias scales"), *_fields(c_int64, "n k"))


class Convolution(ctypes.Structure):
    _fields_ = (("kernels", Matrix), ("base", c_void_p))


class Layer(ctypes.Structure):
    _fields_ = (
        *_fields(Matrix, "qkv o gate_up down"),
        *_fields(c_void_p, "attention_norm mlp_norm q_norm k_norm kv"),
        *_fields(c_int64, "window bidirectional"),
        *_fields(Convolution, "attention_convolution mlp_convolution"),
    )


class Model(ctypes.Structure):
    _fields_ = (
        *_fields(c_int64, "hidden intermediate heads kv_heads head_dim"),
        *_fields(c_int64, "layers vocab rotary_half taps groups"),
        *_fields(c_float, "epsilon scale embedding_scale"),
        ("layer", ctypes.POINTER(Layer)),
        ("head", Matrix),
        *_fields(c_void_p, "embedding embedding_panels"),
        ("mask_id", c_int64),
        *_fields(c_void_p, "mask_row final_norm cos sin"),
        ("context", Matrix),
        ("context_norm", c_void_p),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        *_fields(c_int64, "rows sequences outputs table_stride taps threads"),
        *_fields(c_void_p, "ids positions seq_starts block_tables logit_rows first tap_layers"),
        *_fields(c_void_p, "logits argmax finite confidence hidden features ticks"),
        *_fields(c_void_p, "share_starts sharers"),
    )


class Context(ctypes.Structure):
    _fields_ = (
        *_fields(c_int64, "rows stride threads"),
        *_fields(c_void_p, "features positions slots"),
    )
