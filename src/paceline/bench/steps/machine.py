"""The machine that this process runs on, measured, as a device of the roofline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from paceline.core import InvalidRequest
from paceline.engine.engine import Engine
from paceline.engine.machine import cpu_name, total_memory, usable_cores
from paceline.engine.peak import matmul_peak, read_bandwidth
from paceline.engine.runner import timed_step
from paceline.engine.startup import bandwidth_bound
from paceline.engine.step_cost import REPEATS, timed
from paceline.models.batch import BLOCK_SIZE
from paceline.models.tensors import expected_tensors
from paceline.roofline.device import Hardware

NAME = "this-machine"
RATES = {"bf16": torch.bfloat16, "fp32": torch.float32}
NUMBERS = {"bfloat16": "bf16", "float32": "fp32"}  # an engine's dtype, as the roofline calls it
ROWS = 256  # of the forward whose rate is measured


def this_machine(device: str = "cpu", engine: Engine | None = None) -> Hardware:
    """Measure this machine for a few seconds.

    With an `engine` the bandwidth is that of reading its packed weights, the bandwidth bound, and
    its forward counts for the peak, which is that of matrix products else. The engine must
    not have computed anything: the forward is over blocks of KV that no request owns.
    """
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InvalidRequest("device", device, "cpu, or cuda where torch sees such a device")
    if engine is None:
        torch.set_num_threads(usable_cores())
        bandwidth = read_bandwidth(device)
    else:
        bandwidth = engine.runner.network.streamed_bytes / bandwidth_bound(engine)
    peak = {name: matmul_peak(dtype, device) for name, dtype in RATES.items()}
    if engine is not None:
        number = NUMBERS[engine.config.dtype]
        peak[number] = max(peak[number], forward_rate(engine))
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        memory, described = gpu.total_memory, gpu.name
    else:
        memory, described = total_memory(), f"{cpu_name()}, {torch.get_num_threads()} threads"
    # Where the wider format multiplies faster, the narrower one can be widened.
    peak["bf16"] = max(peak.values())
    return Hardware(
        name=NAME,
        memory_bandwidth=bandwidth,
        peak=peak,
        memory=float(memory),
        kind="cpu" if device == "cpu" else "nvidia-gpu",
        source=f"measured on {described}",
    )


@torch.inference_mode()
def forward_rate(engine: Engine) -> float:
    """Return the operations per second of the best of several forwards bound by arithmetic."""
    network: Any = engine.runner.network
    rows = min(ROWS, engine.cache.num_blocks * BLOCK_SIZE, engine.max_model_len)
    shapes = expected_tensors(replace(network.config, tie_word_embeddings=True))
    weights = sum(torch.Size(shape).numel() for shape in shapes.values() if len(shape) == 2)
    seconds = min(timed(lambda: timed_step(network, rows)) for _ in range(1 + REPEATS))
    return 2 * weights * rows / seconds
