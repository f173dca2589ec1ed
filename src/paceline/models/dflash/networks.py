"""Choose the serving form that runs a drafter here, and plan its memory."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.core import ModelError
from paceline.kernels.packing import PANEL
from paceline.models.batch import Network, Part
from paceline.models.dflash.batch import DFlashNetwork
from paceline.models.dflash.checkpoint import DFlashCheckpoint
from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.native_network import NativeDFlash
from paceline.models.dflash.tensors import dflash_tensors, linear_of
from paceline.models.dflash.torch_network import TorchDFlash
from paceline.models.native_network import NativeNetwork
from paceline.models.networks import DTYPES, native_fits
from paceline.models.quantized import UNQUANTIZED, Recipe, recipe_of


def build_dflash(
    checkpoint: DFlashCheckpoint,
    target: Network,
    *,
    dtype: str,
    backend: str = "auto",
    quantize: str | None = None,
    head_ids: Tensor | None = None,
    max_positions: int,
) -> DFlashNetwork:
    """Build the drafter's network around `target`'s embedding and head, on the target's device.

    `auto` takes the fused kernels where the target runs on them. Raises ModelError where "native"
    cannot run, and InvalidRequest where `quantize`, which is for its own layers, cannot be.
    """
    native, why = _fits_kernels(checkpoint.config, target, dtype)
    if backend == "native" and not native:
        raise ModelError(f"drafter backend: got 'native', but {why}; expected auto or torch")
    recipe = dflash_recipe(checkpoint.config, target, dtype, backend, quantize)
    if backend != "torch" and isinstance(target, NativeNetwork) and native:
        return NativeDFlash(checkpoint, target, max_positions, head_ids, recipe)
    return TorchDFlash(checkpoint, target, DTYPES[dtype], max_positions, head_ids, recipe)


def dflash_recipe(
    config: DFlashConfig, target: Network, dtype: str, backend: str, quantize: str | None
) -> Recipe:
    """Return what build_dflash() makes of the drafter's own layers around `target`. Raises
    InvalidRequest where `quantize` cannot be."""
    path = None
    if backend != "torch" and isinstance(target, NativeNetwork):
        path = target.path if _fits_kernels(config, target, dtype)[0] else None
    return recipe_of(quantize, target.device.type, dtype, path)


def _fits_kernels(config: DFlashConfig, target: Network, dtype: str) -> tuple[bool, str]:
    """Return whether a drafter runs on the fused kernels beside `target`, and the reason if not."""
    if not isinstance(target, NativeNetwork):
        return False, "the target does not run on the fused kernels, and it shares its weights"
    native, why = native_fits(config.layers, dtype, target.device.type)
    width = config.layers.num_heads * config.layers.head_dim
    if native and width % PANEL:  # keys and values, which are injected, begin at a panel
        return False, f"its queries are {width} wide, which is no multiple of {PANEL}"
    return native, why


def planned_bytes(
    config: DFlashConfig, dtype: torch.dtype, head_ids: Tensor | None, recipe: Recipe = UNQUANTIZED
) -> int:
    """Return the bytes of the drafter's weights, with those of a cut head, before there is a target
    to build it around."""
    head = 0 if head_ids is None else len(head_ids) * config.layers.hidden_size
    return head * recipe.itemsize(Part.HEAD, dtype) + sum(
        torch.Size(shape).numel() * recipe.itemsize(linear_of(name), dtype)
        for name, shape in dflash_tensors(config).items()
        if len(shape) > 1
    )
