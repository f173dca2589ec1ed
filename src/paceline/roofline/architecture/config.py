"""Read a Hugging Face config: its fields, its lists by layer, and the number format of each part.

Errors name the field that is wrong.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping

from paceline.core.config_fields import ConfigFields
from paceline.core.errors import InvalidRequest, ModelError
from paceline.roofline.device import FORMATS

MOST = 10**8  # of a size: beyond all models, and products of sizes stay exact
MOST_LAYERS = 10**4
# The parts of a model, and the name of a module of each as checkpoints have it.
MODULES = {
    "attention": "model.layers.9.self_attn.o_proj",
    "feed_forward": "model.layers.9.mlp.down_proj",
    "experts": "model.layers.9.mlp.experts.7.down_proj",
    "shared_experts": "model.layers.9.mlp.shared_experts.down_proj",
    "head": "lm_head",
}
# The formats that a cache may have.
CACHES = {"kv": ("bf16", "fp16", "fp32", "fp8", "int8"), "state": ("bf16", "fp16", "fp32")}
PARTS = (*MODULES, *CACHES)
Precision = str | Mapping[str, object]
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MODELOPT = {"FP8": "fp8", "NVFP4": "nvfp4", "W4A8_NVFP4_FP8": "nvfp4"}
_EXPERT_DTYPES = {"fp4": "mxfp4", "fp8": "fp8", "bf16": "bf16"}


class LayeredConfig(ConfigFields):
    """The fields of a config, whose sizes are bounded and some of whose lists are by layer.

    `formats` are the number formats of the model's parts.
    """

    def __init__(
        self, values: Mapping[str, object], formats: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(values, "config")
        self.formats = formats or {}

    @property
    def depth(self) -> int:
        return self.integer("num_hidden_layers", high=MOST_LAYERS)

    def integer(
        self, *names: str, default: int | None = None, low: int = 1, high: int | None = MOST
    ) -> int:
        return super().integer(*names, default=default, low=low, high=high)

    def by_layer(self, name: str) -> list[object]:
        """Return a list by layer; a longer one is cut: draft layers follow."""
        value, depth = self.get(name), self.depth
        if not isinstance(value, list) or len(value) < depth:
            raise ModelError(f"config: {name} is not a list of {depth} layers")
        return value[:depth]

    def kinds(self, *allowed: str) -> list[object] | None:
        """Return the word for each layer of `layer_types`, or None where it is absent."""
        if not self.has("layer_types"):
            return None
        kinds = self.by_layer("layer_types")
        for kind in kinds:
            if kind not in allowed:
                expected = ", ".join(allowed)
                raise ModelError(f"config: layer_types has {kind!r}; expected one of {expected}")
        return kinds


# -- formats ---------------------------------------------------------------------------------------


def read_formats(
    config: Mapping[str, object],
    text: Mapping[str, object],
    precision: Precision | None,
    kv: str | None = None,
) -> dict[str, str]:
    """Return the format of each part of a model; `text` is the config of its text model.

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
    source = config if config.get("quantization_config") else text
    quantization = ConfigFields(source, "config").section("quantization_config")
    if quantization.values:
        for part in _quantised(quantization):
            formats[part] = _quantised_format(quantization)
        formats["kv"] = _cache_format(quantization) or formats["kv"]
    experts = text.get("expert_dtype")
    if experts is not None:
        if not isinstance(experts, str) or experts not in _EXPERT_DTYPES:
            raise ModelError(f"config: expert_dtype is {experts!r}; expected fp4 or fp8")
        formats["experts"] = _EXPERT_DTYPES[experts]
    return {**formats, **_overrides(precision)}


def _overrides(precision: object) -> dict[str, str]:
    if precision is None:
        return {}
    if isinstance(precision, str):
        name = _format("precision", precision)
        return {part: name for part in MODULES if part != "head"}
    if not isinstance(precision, Mapping):
        expected = f"a format's name, or an object with names for parts: {', '.join(PARTS)}"
        raise InvalidRequest("precision", precision, expected)
    return {part: _part_format(part, name) for part, name in precision.items()}


def _part_format(part: str, name: object) -> str:
    field = f"precision.{part}"
    if part not in PARTS:
        raise InvalidRequest(field, name, f"a part: {', '.join(PARTS)}")
    return _format(field, name, CACHES.get(part, FORMATS))


def _format(field: str, name: object, allowed: Collection[str] = FORMATS) -> str:
    if not isinstance(name, str) or name not in allowed:
        raise InvalidRequest(field, name, f"one of {', '.join(allowed)}")
    return name


def _quantised(quantization: ConfigFields) -> list[str]:
    """The parts that the quantization covers."""
    if quantization.get("quant_method") == "mxfp4":
        return ["experts"]  # transformers' mxfp4 is of gpt-oss's expert weights alone
    kept = quantization.words("modules_to_not_convert") or quantization.words("ignore")
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


def _quantised_format(quantization: ConfigFields) -> str:
    method = str(quantization.get("quant_method"))
    if method in ("fp8", "mxfp4"):
        return method
    if method in ("awq", "gptq"):
        return _integer_format(quantization.get("bits", "w_bit"), quantization.get("group_size"))
    if method == "compressed-tensors":
        return _compressed(quantization)
    if method == "modelopt":
        algorithm = str(quantization.get("quant_algo")).upper()
        if algorithm in _MODELOPT:
            return _MODELOPT[algorithm]
        raise ModelError(f"config: modelopt's quant_algo is {algorithm!r}; expected FP8 or NVFP4")
    known_methods = "fp8, mxfp4, awq, gptq, compressed-tensors, modelopt"
    raise ModelError(f"config: quant_method is {method!r}; expected one of {known_methods}")


def _compressed(quantization: ConfigFields) -> str:
    groups = quantization.section("config_groups").values
    if len(groups) != 1:
        raise ModelError(f"config: quantization_config has {len(groups)} config_groups; expected 1")
    (group,) = (quantization.section("config_groups").section(name) for name in groups)
    weights = group.section("weights")
    bits = weights.get("num_bits")
    if weights.get("type") == "float":
        if bits in (4, 8):
            return "fp8" if bits == 8 else "nvfp4"
        raise ModelError(f"config: quantised floats of {bits!r} bits; expected 4 or 8")
    if bits == 8 and group.get("input_activations"):
        return "int8"
    return _integer_format(bits, weights.get("group_size"))


def _cache_format(quantization: ConfigFields) -> str | None:
    """Return the cache format that a compressed-tensors checkpoint states, or None."""
    scheme = quantization.section("kv_cache_scheme")
    kind = scheme.get("num_bits"), scheme.get("type")
    if scheme.values and kind != (8, "float"):
        raise ModelError(f"config: kv_cache_scheme of {kind}; expected 8 bits, float")
    return "fp8" if scheme.values else None


def _integer_format(bits: object, group: object) -> str:
    if bits == 4:
        return "int4-g32" if group == 32 else "int4"
    raise ModelError(f"config: weight-only integers of {bits!r} bits; expected 4")
