"""How many requests fit: what a device holds beside the weights, over what a request keeps."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import InvalidRequest, check_number
from paceline.roofline.architecture import Architecture
from paceline.roofline.components import Experts, State
from paceline.roofline.drafting import DrafterCost
from paceline.roofline.hardware import Hardware
from paceline.roofline.precision import FORMATS
from paceline.roofline.work import Options, Workload

UTILISATION = 0.9  # share of the memory that an engine plans with


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes on one device: what is `usable`, the `weights` (drafter's included), and what each of
    its requests keeps. `max_batch` counts the requests of all devices; 0 when weights do not fit.
    """

    usable: float
    weights: float
    per_request: float
    max_batch: int


def capacity(
    architecture: Architecture,
    hardware: Hardware,
    workload: Workload,
    options: Options | None = None,
    *,
    drafter: DrafterCost | None = None,
    utilisation: float = UTILISATION,
) -> Capacity:
    """What fits with `workload.context` tokens and `rows_per_request` rows in flight per request.

    Recurrent states keep a snapshot per row in flight, unless they are replayed.
    """
    check_number("utilisation", utilisation, 0.01, 1, "a share of the memory, 0.01 to 1")
    options = options or Options()
    usable = hardware.memory * utilisation
    weights = _weights(architecture, options)
    kept = _kept(architecture, workload, options)
    if drafter is not None and drafter.model is not None:
        weights += _weights(drafter.model, options)
        kept += _kept(drafter.model, workload, options)
    room = max(0.0, usable - weights)
    fit = int(room / kept) if kept else 10**7 * (room > 0)
    return Capacity(usable, weights, kept, fit * options.data_parallel)


def max_batch(
    architecture: Architecture,
    hardware: Hardware,
    workload: Workload,
    options: Options | None = None,
    *,
    drafter: DrafterCost | None = None,
    utilisation: float = UTILISATION,
) -> int:
    """Most requests at once; 0 when the weights alone do not fit."""
    found = capacity(
        architecture, hardware, workload, options, drafter=drafter, utilisation=utilisation
    )
    return found.max_batch


def check_fits(
    architecture: Architecture,
    hardware: Hardware,
    workload: Workload,
    options: Options | None = None,
    *,
    drafter: DrafterCost | None = None,
    utilisation: float = UTILISATION,
) -> Capacity:
    """The capacity. Raises InvalidRequest, naming what would fit, where the batch does not."""
    found = capacity(
        architecture, hardware, workload, options, drafter=drafter, utilisation=utilisation
    )
    if found.weights > found.usable:
        expected = (
            f"more or larger devices: {found.weights / 1e9:.1f} GB of weights per device do not "
            f"fit into {found.usable / 1e9:.1f} GB"
        )
        raise InvalidRequest("hardware", hardware.name, expected)
    if workload.batch > found.max_batch:
        expected = (
            f"at most {found.max_batch}: beside the weights, a device holds so many requests of "
            f"{workload.context} tokens ({found.per_request / 1e9:.3g} GB each)"
        )
        raise InvalidRequest("batch", workload.batch, expected)
    return found


def _weights(architecture: Architecture, options: Options) -> float:
    """Experts lie across all devices, the rest across a tensor-parallel group."""
    embedding = 0 if architecture.tied else architecture.vocabulary * architecture.hidden
    total = embedding * FORMATS[architecture.embedding_format].bytes / options.tensor_parallel
    for count, part in architecture.components():
        shards = options.devices if isinstance(part, Experts) else options.tensor_parallel
        total += count * part.weight_bytes / shards
    return total


def _kept(architecture: Architecture, workload: Workload, options: Options) -> float:
    """Bytes of one request on each device that holds it."""
    total = 0.0
    length = workload.context + workload.rows_per_request
    for count, part in architecture.components():
        kept = part.cache_bytes(length) * part.cache_share(options)
        if isinstance(part, State):
            if options.state_precision is not None:
                kept *= FORMATS[options.state_precision].bytes / FORMATS[part.format].bytes
            if options.snapshots == "per-token":
                kept *= workload.rows_per_request
        total += count * kept
    return total
