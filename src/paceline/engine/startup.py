"""The table that is printed once at start-up: what runs, what memory it takes, what it could do."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from paceline.drafters.base import Networked, Reporting
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.needs import size_text
from paceline.engine.step_cost import timed
from paceline.models.quantized import recipe_of

READS = 5
_bounds: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()


def bandwidth_bound(engine: Engine) -> float:
    """Return the bound of a step: seconds of a loop that only reads the model's own packed weights
    (pl_read). An engine is timed once."""
    if engine not in _bounds:
        _bounds[engine] = min(timed(engine.runner.network.read_weights) for _ in range(READS))
    return _bounds[engine]


def start_up_rows(engine: Engine) -> list[tuple[str, str]]:
    """Rows of (label, value): model, network, memory plan, bandwidth bound, drafters, rule."""
    plan, config, network = engine.plan, engine.config, engine.runner.network
    weights, kv = size_text(plan.weight_bytes), size_text(plan.kv_bytes)
    if plan.drafter_weight_bytes:
        weights += f", {size_text(plan.drafter_weight_bytes)} of them the drafters'"
    if plan.drafter_kv_bytes_per_token:
        kv += f" ({size_text(plan.drafter_kv_bytes_per_token * plan.kv_tokens)} the drafters')"
    prefix_cache = "on" if config.prefix_cache else "off"
    spare = f"{size_text(plan.spare_bytes)} for drafters that are loaded later"
    bound = bandwidth_bound(engine)
    bandwidth = network.streamed_bytes / bound / 1e9
    drafters = [
        f"{name} (up to {drafter.max_draft_len} tokens)"
        + (", default" if name == engine.default_drafter else "")
        for name, drafter in engine.drafters.items()
    ]
    cost = engine.scheduler.cost
    points = zip(cost.rows, cost.seconds, strict=True)
    steps = ", ".join(f"{rows}: {seconds * 1e3:.1f} ms" for rows, seconds in points)
    return [
        ("model", f"{engine.model_name}, {config.dtype} on {config.device}"),
        ("network", engine.backend),
        *_quantized(engine),
        ("weights", weights),
        ("KV cache", f"{kv} for {plan.kv_tokens} tokens, prefix cache {prefix_cache}"),
        *([("kept free", spare)] if plan.spare_bytes else []),
        ("context", f"{plan.max_model_len} tokens, {config.max_num_seqs} requests at once"),
        ("bandwidth bound", f"{bound * 1e3:.1f} ms a step at {bandwidth:.0f} GB/s"),
        ("step by rows", steps),
        ("drafter", "; ".join(drafters) or "none: plain decoding (AR)"),
        *(
            row
            for drafter in engine.drafters.values()
            if isinstance(drafter, Reporting)
            for row in drafter.start_up_rows
        ),
        *_quantized_drafters(engine),
        ("rule", config.rule + ("" if engine.verifier.lossless else " (NOT lossless)")),
    ]


def _quantized(engine: Engine) -> list[tuple[str, str]]:
    config = engine.config
    if config.quantize is None:
        return []
    number = recipe_of(config.quantize, config.device, config.dtype).number
    if engine.quality is not None:
        return [(number, engine.quality.describe(config.dtype))]
    usual = EngineConfig()
    options = [
        f" --{name} {getattr(config, name)}"
        for name in ("dtype", "device", "backend")
        if getattr(config, name) != getattr(usual, name)
    ]
    return [(number, f"`paceline quality {config.model}{''.join(options)}` measures what it costs")]


def _quantized_drafters(engine: Engine) -> list[tuple[str, str]]:
    """Return the rows of drafters whose layers are quantised where the target's are not."""
    if engine.config.quantize is not None:
        return []
    networks = {
        name: drafter.network
        for name, drafter in engine.drafters.items()
        if isinstance(drafter, Networked)
    }
    return [
        (f"layers of {name}", f"{network.number}: drafts are verified, so this changes no text")
        for name, network in networks.items()
        if network is not None and network.number
    ]
