"""Which of the two networks runs a model here, and why."""

from __future__ import annotations

import torch

from paceline.core import ModelError
from paceline.models.batch import Network
from paceline.models.config import ModelConfig
from paceline.models.loader import LoadedModel
from paceline.models.native_network import NativeNetwork, native_available
from paceline.models.network import TorchNetwork
from paceline.models.progress import byte_progress
from paceline.models.recipe import recipe_of
from paceline.models.weights import CountedWeights, stored_bytes

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DEVICES = ("cpu", "cuda")
BACKENDS = ("auto", "native", "torch")


def build_network(
    loaded: LoadedModel,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    backend: str = "auto",
    quantize: str | None = None,
    max_positions: int | None = None,
) -> tuple[Network, str]:
    """Reads the weights into a network; the string says which one it is and why.

    `auto` takes the fused kernels where they run (bfloat16 on CPU, with a compiler), else torch.
    Positions of a batch are below `max_positions` (default: the model's context). Raises ModelError
    for an unknown choice, for a device that is not there, and where "native" cannot run, and
    InvalidRequest where `quantize` cannot be.
    """
    for field, value, known in (
        ("dtype", dtype, tuple(DTYPES)),
        ("device", device, DEVICES),
        ("backend", backend, BACKENDS),
    ):
        if value not in known:
            raise ModelError(f"{field}: got {value!r}; expected one of {', '.join(known)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("device: got 'cuda', but torch sees no CUDA device here; expected cpu")
    native, why = _native(loaded.config, dtype, device)
    if backend == "native" and not native:
        raise ModelError(f"backend: got 'native', but {why}; expected auto or torch")
    recipe = recipe_of(quantize, device, dtype)
    positions = max_positions or loaded.max_context
    with byte_progress(f"loading {loaded.name}", stored_bytes(loaded.weights)) as advance:
        weights = CountedWeights(loaded.weights, advance)
        if native and backend != "torch":
            native_network = NativeNetwork(loaded.config, weights, positions, recipe)
            return native_network, f"native kernels ({why})"
        reason = "asked for" if backend == "torch" else why
        network = TorchNetwork(loaded.config, weights, device, DTYPES[dtype], positions, recipe)
        return network, f"torch ({reason})"


def _native(config: ModelConfig, dtype: str, device: str) -> tuple[bool, str]:
    if device != "cpu":
        return False, f"the fused kernels are for cpu, not {device}"
    if dtype != "bfloat16":
        return False, f"the fused kernels are for bfloat16, not {dtype}"
    return native_available(config)
