"""The number of requests that fit: the memory that weights leave free over that of a request."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.errors import InvalidRequest
from paceline.roofline.architecture.components import Experts, State
from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.deployment import Deployment
from paceline.roofline.cost.drafters import DrafterCost
from paceline.roofline.device import FORMATS

UTILISATION = 0.9  # share of the memory that an engine plans with


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes on one device: the `usable` ones, the `weights` (drafter's included), and those that
    each of its requests keeps. `max_batch` counts the requests of all devices; 0 where the weights
    do not fit."""

    usable: float
    weights: float
    per_request: float
    max_batch: int


def capacity(
    deployment: Deployment, load: Workload, drafter: DrafterCost | None = None
) -> Capacity:
    """Compute what fits with `load.context` tokens and `rows_per_request` rows in flight for each
    request.

    Recurrent states keep a snapshot per row in flight, unless they are replayed.
    """
    models = [deployment]
    if drafter is not None and drafter.model is not None:
        models.append(deployment.running(drafter.model))
    usable = deployment.hardware.memory * UTILISATION
    weights = sum(map(_weights, models))
    kept = sum(_kept(model, load) for model in models)
    free = max(0.0, usable - weights)
    requests = int(free / kept) if kept else 10**7 * (free > 0)
    return Capacity(usable, weights, kept, requests * deployment.options.data_parallel)


def check_fits(deployment: Deployment, load: Workload) -> Capacity:
    """Return the capacity. Raises InvalidRequest, naming what would fit, where the batch does
    not."""
    fits = capacity(deployment, load)
    if fits.weights > fits.usable:
        expected = (
            f"more or larger devices: {fits.weights / 1e9:.1f} GB of weights per device do not "
            f"fit into {fits.usable / 1e9:.1f} GB"
        )
        raise InvalidRequest("hardware", deployment.hardware.name, expected)
    if load.batch > fits.max_batch:
        expected = (
            f"at most {fits.max_batch}: beside the weights, a device holds so many requests of "
            f"{load.context} tokens ({fits.per_request / 1e9:.3g} GB each)"
        )
        raise InvalidRequest("batch", load.batch, expected)
    return fits


def _weights(deployment: Deployment) -> float:
    """Bytes of weights on each device: experts lie across all devices, other weights across a
    tensor-parallel group."""
    architecture, options = deployment.architecture, deployment.options
    total = architecture.embedding_bytes() / options.tensor_parallel
    for count, part in architecture.components():
        shards = options.devices if isinstance(part, Experts) else options.tensor_parallel
        total += count * part.weight_bytes / shards
    return total


def _kept(deployment: Deployment, load: Workload) -> float:
    """Bytes of one request on each device that holds it."""
    options, total = deployment.options, 0.0
    length = load.context + load.rows_per_request
    for count, part in deployment.architecture.components():
        kept = part.cache_bytes(length) * part.cache_share(options)
        if isinstance(part, State):
            if options.state_precision is not None:
                kept *= FORMATS[options.state_precision].bytes / FORMATS[part.format].bytes
            if options.snapshots == "per-token":
                kept *= load.rows_per_request
        total += count * kept
    return total
