"""The exchanges between devices that share a model, in one forward.

g devices exchange n bytes: an all-reduce around a ring sends 2·(g−1)/g·n through each link, with a
switch that reduces about n; gathering or dealing out sends (g−1)/g·n. Each call waits for the
latency.
"""

from __future__ import annotations

from paceline.core.errors import InvalidRequest
from paceline.roofline.architecture import Architecture
from paceline.roofline.architecture.components import Experts
from paceline.roofline.architecture.work import Options, Work, Workload
from paceline.roofline.device import Hardware

ACTIVATION = 2.0  # bytes: bf16
DISPATCH = 1.0  # tokens go to experts in fp8, and come back in bf16


def exchanges(
    architecture: Architecture,
    hardware: Hardware,
    load: Workload,
    total: Workload,
    options: Options,
) -> list[tuple[int, Work]]:
    """Return the exchanges of one forward, each with its count.

    `load` is one data-parallel group's share of `total`. Raises InvalidRequest where the hardware
    has no link.
    """
    if options.devices == 1 or options.communication == "ignored":
        return []
    if not hardware.link_bandwidth:
        expected = f"1 device: no link is stated for {hardware.name} (or communication: ignored)"
        field = "tensor_parallel" if options.tensor_parallel > 1 else "data_parallel"
        raise InvalidRequest(field, getattr(options, field), expected)
    shared, row = options.tensor_parallel, architecture.hidden * ACTIVATION
    share = 1.0 if options.communication == "in-network" else 2.0 * (shared - 1) / shared
    reduce = _call(load.rows * row, shared, share, hardware)
    works = []
    for group in architecture.layers:
        active = [part.active for part in group.components if isinstance(part, Experts)]
        second = reduce
        if active and options.data_parallel > 1:
            second = _to_experts(total.rows * row, max(active), hardware, options)
        works.append((group.count, _work(reduce + second)))
    logits = _spread(load.rows * architecture.vocabulary * ACTIVATION, shared, hardware)
    return [*works, (1, _work(logits))]


def _work(seconds: float) -> Work:
    return Work("communication", "communication", 0.0, 0.0, seconds=seconds)


def _call(size: float, devices: int, share: float, hardware: Hardware) -> float:
    """Seconds of a call in which `share` of `size` bytes goes through each link."""
    if devices == 1:
        return 0.0
    return share * size / hardware.link_bandwidth + hardware.link_latency


def _spread(size: float, devices: int, hardware: Hardware) -> float:
    """A gather, a scatter or a deal of `size` bytes among so many devices."""
    return _call(size, devices, (devices - 1) / devices, hardware)


def _to_experts(size: float, active: int, hardware: Hardware, options: Options) -> float:
    """Send all rows, `size` bytes, to the experts and back, from groups that hold different
    requests.

    Whole experts: each device sends its rows to `active` experts. Experts that are cut up: every
    device needs every row.
    """
    if options.expert_parallel == 1:
        return 2.0 * _spread(size, options.devices, hardware)
    dealt = size / options.devices * active
    there = _spread(dealt * DISPATCH / ACTIVATION, options.expert_parallel, hardware)
    return there + _spread(dealt, options.expert_parallel, hardware)
