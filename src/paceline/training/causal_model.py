"""Causal models of `transformers`, frozen, as targets of training: in one process, or with their
layers spread over several (FSDP2)."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from paceline.core import ModelError
from paceline.core.config_fields import ConfigFields
from paceline.models.any_target import AnyTarget, transformers_config
from paceline.models.json_files import read_json
from paceline.training.workers import Workers

IN_A_LAYER = re.compile(r"\.layers\.\d+\.")  # names of tensors


def load_causal_model(
    target: AnyTarget, dtype: torch.dtype, device: str | None, only: Collection[int] | None = None
) -> Any:
    """Load a causal model, frozen, onto a device; None leaves it where it is read. Of its layers
    `only` these are loaded; another one has no tensors and returns what it gets.

    Raises ModelError, also for a checkpoint without all tensors of the model: transformers makes up
    those that are missing.
    """
    fields = ConfigFields(read_json(target.path / "config.json"))
    kind = model_class(target.path, target.name)
    if only is not None:
        kind = _with_layers(kind, only)
    options: dict[str, Any] = {"dtype": dtype, "local_files_only": True}
    if device not in (None, "cpu") and fields.get("quantization_config"):
        options["device_map"] = device  # such weights are often made on their device
    try:
        model, report = kind.from_pretrained(target.path, output_loading_info=True, **options)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise ModelError(f"{target.name}: transformers cannot load it ({error})") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{target.name}: its files lack {len(missing)} tensors: {missing[0]}…")
    model = model.eval().requires_grad_(False)
    return model if device is None or "device_map" in options else model.to(device)


def load_spread(target: AnyTarget, dtype: torch.dtype, workers: Workers) -> Any:
    """Load a causal model, frozen, with its layers spread over all processes.

    A process reads one layer after the other and keeps its share, so it never holds more than that,
    one whole layer, and twice what is outside of the layers, embedding and head among it: that is
    read beside each layer. So experts that transformers joins, and weights that it restores, need
    no memory for all layers at once. Raises ModelError as load_causal_model() does, and for layers
    that share tensors.
    """
    mesh = init_device_mesh(torch.device(workers.device).type, (workers.count,))
    model = load_restored(target, dtype, ())
    layers = decoder_layers(model, target)
    for index in range(len(layers)):
        layer = decoder_layers(load_restored(target, dtype, (index,)), target)[index]
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        layers[index] = layer
        gc.collect()  # the rest of the model that the layer was read with
    return model.to(workers.device)


def decoder_layers(model: Any, target: AnyTarget) -> nn.ModuleList:
    """Return the decoder layers of a causal model. Raises ModelError where it has no list of them,
    or of another length than its config says."""
    layers = _layers(model, target.name)
    if len(layers) != target.shape.num_layers:
        raise ModelError(
            f"{target.name}: transformers has {len(layers)} layers of it, and its config "
            f"{target.shape.num_layers}"
        )
    return layers


def _layers(model: Any, name: str) -> nn.ModuleList:
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(f"{name}: {type(decoder).__name__} has no list of layers")
    return layers


@torch.no_grad()
def load_restored(target: AnyTarget, dtype: torch.dtype, only: Collection[int]) -> Any:
    """Load some layers. compressed-tensors are restored now, by each process for itself:
    transformers does so in the first forward, by exchanging parameters, which those of spread
    layers cannot be."""
    model = load_causal_model(target, dtype, None, only)
    stored = getattr(model.config, "quantization_config", None)
    if stored is not None and stored.quant_method == "compressed-tensors":
        from compressed_tensors.compressors import decompress_module
        from compressed_tensors.quantization import QuantizationStatus

        compressor = model.hf_quantizer.compressor
        for module in list(model.modules()):
            if getattr(module, "quantization_status", None) is QuantizationStatus.COMPRESSED:
                decompress_module(module, compressor.force_compression_format)
        compressor.remove_decompression_hook(model)
    return model


def _with_layers(kind: Any, kept: Collection[int]) -> Any:
    """Return a class of a model that has the tensors of these layers alone."""

    def build(self: Any, *arguments: Any, **options: Any) -> None:
        kind.__init__(self, *arguments, **options)
        tied = self.all_tied_weights_keys.items()
        if shared := sorted(name for pair in tied for name in pair if IN_A_LAYER.search(name)):
            raise ModelError(f"{kind.__name__}: layers share {shared[0]}, so they cannot be spread")
        layers = _layers(self, kind.__name__)
        for index in set(range(len(layers))) - set(kept):
            layers[index] = nn.Identity()

    unread = [*(kind._keys_to_ignore_on_load_unexpected or ()), IN_A_LAYER.pattern]
    fields = {"__init__": build, "_keys_to_ignore_on_load_unexpected": unread}
    return type(kind.__name__, (kind,), fields)


def model_class(folder: Path, name: str) -> Any:
    """Return the class in transformers of the architecture that a checkpoint states. Underscores
    may differ: Kimi-K2.5 states `KimiK25…`, and its class is `Kimi_K25…`. Raises ModelError."""
    import transformers

    names = ConfigFields(read_json(folder / "config.json")).words("architectures")
    architecture = names[0] if names else "none named"
    if (stated := getattr(transformers, architecture, None)) is not None:
        return stated
    unknown = f"{name}: transformers knows no architecture {architecture}"
    try:
        config = type(transformers_config(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{unknown}, and cannot read the config ({error})") from error
    for mapping in (
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    ):
        mapped = mapping.get(config, None)
        if mapped and mapped.__name__.replace("_", "") == architecture.replace("_", ""):
            return mapped
    raise ModelError(unknown)
