"""The table that is printed once at start-up: what runs, what memory it takes, what it could do."""

from __future__ import annotations

import time

from paceline.drafters.base import Drafter, Reporting
from paceline.engine.engine import Engine
from paceline.engine.memory import MemoryPlan
from paceline.models.quantized import recipe_of

READS = 5


def bandwidth_bound(engine: Engine) -> float:
    """Seconds of a pure read loop over the model's own packed weights: no decode step is faster."""
    best = float("inf")
    for _ in range(READS):
        start = time.perf_counter()
        engine.runner.network.read_weights()
        best = min(best, time.perf_counter() - start)
    return best


def start_up_rows(engine: Engine) -> list[tuple[str, str]]:
    """Rows of (label, value): model, network, memory plan, bandwidth bound, drafters, rule."""
    plan, config, network = engine.plan, engine.config, engine.runner.network
    bound = bandwidth_bound(engine)
    bandwidth = network.streamed_bytes / bound / 1e9
    drafters = [
        f"{name} (up to {drafter.max_draft_len} tokens)"
        + (", default" if name == engine.default_drafter else "")
        for name, drafter in engine.drafters.items()
    ]
    cost = engine.scheduler.cost
    steps = (
        "not measured"
        if cost is None
        else ", ".join(
            f"{rows}: {seconds * 1e3:.1f} ms"
            for rows, seconds in zip(cost.rows, cost.seconds, strict=True)
        )
    )
    return [
        ("model", f"{engine.model_name}, {config.dtype} on {config.device}"),
        ("network", engine.backend),
        *_quantized(engine),
        ("weights", _weights(plan)),
        (
            "KV cache",
            f"{_kv(plan)} for {plan.kv_tokens} tokens, "
            f"prefix cache {'on' if config.prefix_cache else 'off'}",
        ),
        ("context", f"{plan.max_model_len} tokens, {config.max_num_seqs} requests at once"),
        ("bandwidth bound", f"{bound * 1e3:.1f} ms a step at {bandwidth:.0f} GB/s"),
        ("step by rows", steps),
        ("drafter", "; ".join(drafters) or "none: plain decoding (AR)"),
        *(row for drafter in engine.drafters.values() for row in _rows_of(drafter)),
        ("rule", config.rule + ("" if engine.verifier.lossless else " (NOT lossless)")),
    ]


def _rows_of(drafter: Drafter) -> list[tuple[str, str]]:
    return drafter.start_up_rows if isinstance(drafter, Reporting) else []


def _quantized(engine: Engine) -> list[tuple[str, str]]:
    """Rows that say what is quantised, and what that costs; none where nothing is."""
    config = engine.config
    if config.quantize is None:
        return []
    number = recipe_of(config.quantize, config.device, config.dtype).number
    if engine.quality is None:
        return [(number, f"not measured: the {config.dtype} weights do not fit beside these")]
    return [(number, engine.quality.describe(config.dtype))]


def _weights(plan: MemoryPlan) -> str:
    total = _bytes(plan.weight_bytes)
    own = plan.drafter_weight_bytes
    return f"{total}, {_bytes(own)} of them the drafters'" if own else total


def _kv(plan: MemoryPlan) -> str:
    own = plan.drafter_kv_bytes_per_token * plan.kv_tokens
    return (
        f"{_bytes(plan.kv_bytes)} ({_bytes(own)} the drafters')" if own else _bytes(plan.kv_bytes)
    )


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
