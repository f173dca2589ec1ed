"""The number format of each part of a model: from its config, or as the user says."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import InvalidRequest, ModelError
from paceline.roofline.device.hardware import number_format

# The parts of a model, and the name of a module of each as checkpoints have it.
MODULES = {
    "attention": "model.layers.9.self_attn.o_proj",
    "feed_forward": "model.layers.9.mlp.down_proj",
    "experts": "model.layers.9.mlp.experts.7.down_proj",
    "shared_experts": "model.layers.9.mlp.shared_experts.down_proj",
    "head": "lm_head",
}
CACHES = ("kv", "state")
PARTS = (*MODULES, *CACHES)
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_KV_FORMATS = ("bf16", "fp16", "fp32", "fp8", "int8")
_STATE_FORMATS = ("bf16", "fp16", "fp32")


def read_formats(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    precision: str | Mapping[str, str] | None,
    kv: str | None = None,
) -> dict[str, str]:
    """Return the format of each part.

    `precision` overrides: one name for all matrices but the head, or names by part. `kv` is the
    family's cache format, where it is not the activations'.

    Raises ModelError for an unknown quantization, InvalidRequest for a bad name.
    """
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or "bfloat16"
    plain = _DTYPES.get(str(dtype).removeprefix("torch."))
    if plain is None:
        raise ModelError(f"config: dtype is {dtype!r}; expected one of {', '.join(_DTYPES)}")
    formats = {part: plain for part in MODULES}
    formats["kv"] = kv or plain
    formats["state"] = _DTYPES.get(str(text.get("mamba_ssm_dtype") or "float32"), "fp32")
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if quantization:
        for part in _quantised(quantization):
            formats[part] = _quantised_format(quantization)
        formats["kv"] = _cache_format(quantization) or formats["kv"]
    if text.get("expert_dtype") is not None:
        if text["expert_dtype"] not in ("fp4", "fp8", "bf16"):
            raise ModelError(
                f"config: expert_dtype is {text['expert_dtype']!r}; expected fp4 or fp8"
            )
        formats["experts"] = {"fp4": "mxfp4"}.get(text["expert_dtype"], text["expert_dtype"])
    return {**formats, **_overrides(precision)}


def _overrides(precision: object) -> dict[str, str]:
    if precision is None:
        return {}
    if isinstance(precision, str):
        name = number_format(precision).name
        return {part: name for part in MODULES if part != "head"}
    if not isinstance(precision, Mapping):
        expected = f"a format's name, or an object with names for parts: {', '.join(PARTS)}"
        raise InvalidRequest("precision", precision, expected)
    for part, name in precision.items():
        field = f"precision.{part}"
        if part not in PARTS:
            raise InvalidRequest(field, name, f"a part: {', '.join(PARTS)}")
        allowed = {"kv": _KV_FORMATS, "state": _STATE_FORMATS}.get(part)
        if number_format(name, field).name not in (allowed or (name,)):
            raise InvalidRequest(field, name, f"one of {', '.join(allowed or ())}")
    return dict(precision)


def _quantised(quantization: Mapping[str, Any]) -> list[str]:
    """The parts that the quantization covers."""
    method = quantization.get("quant_method")
    kept = quantization.get("modules_to_not_convert") or quantization.get("ignore") or []
    if method == "mxfp4":
        return ["experts"]  # transformers' mxfp4 is of gpt-oss's expert weights alone
    return [
        part
        for part, module in MODULES.items()
        if part != "head" and not any(_matches(pattern, module) for pattern in kept)
    ]


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatch.fnmatch(module, pattern + "*")
    return pattern == module or f".{pattern}." in f".{module}."


def _quantised_format(quantization: Mapping[str, Any]) -> str:
    method = str(quantization.get("quant_method"))
    if method in ("fp8", "mxfp4"):
        return method
    if method in ("awq", "gptq"):
        bits = quantization.get("bits", quantization.get("w_bit"))
        return _integer_format(bits, quantization.get("group_size"))
    if method == "compressed-tensors":
        return _compressed(quantization)
    if method == "modelopt":
        algorithm = str(quantization.get("quant_algo")).upper()
        formats = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A8_NVFP4_FP8": "nvfp4"}
        if algorithm in formats:
            return formats[algorithm]
        raise ModelError(f"config: modelopt's quant_algo is {algorithm!r}; expected FP8 or NVFP4")
    known_methods = "fp8, mxfp4, awq, gptq, compressed-tensors, modelopt"
    raise ModelError(f"config: quant_method is {method!r}; expected one of {known_methods}")


def _compressed(quantization: Mapping[str, Any]) -> str:
    groups = list((quantization.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise ModelError(f"config: quantization_config has {len(groups)} config_groups; expected 1")
    weights = groups[0].get("weights") or {}
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "float":
        if bits in (4, 8):
            return "fp8" if bits == 8 else "nvfp4"
        raise ModelError(f"config: quantised floats of {bits!r} bits; expected 4 or 8")
    if bits == 8 and groups[0].get("input_activations"):
        return "int8"
    return _integer_format(bits, weights.get("group_size"))


def _cache_format(quantization: Mapping[str, Any]) -> str | None:
    """Return the cache format that a compressed-tensors checkpoint states, or None."""
    scheme = quantization.get("kv_cache_scheme")
    if not scheme:
        return None
    kind = (scheme.get("num_bits"), scheme.get("type"))
    if kind == (8, "float"):
        return "fp8"
    raise ModelError(f"config: kv_cache_scheme of {kind}; expected 8 bits, float")


def _integer_format(bits: object, group: object) -> str:
    if bits == 4:
        return "int4-g32" if group == 32 else "int4"
    raise ModelError(f"config: weight-only integers of {bits!r} bits; expected 4")
