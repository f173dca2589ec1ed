"""From an EngineConfig to an Engine: load, plan memory, attach drafters, time a few steps."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from paceline.core import DraftPolicy, InvalidRequest
from paceline.drafters.base import Branching, Drafter, TargetInfo, Windowed
from paceline.drafters.kinds import BuildContext
from paceline.drafters.spec import make_drafters
from paceline.engine.config import EngineConfig
from paceline.engine.costs import CostSource, starting_costs
from paceline.engine.engine import Engine
from paceline.engine.machine import use_threads
from paceline.engine.memory import MemoryPlan, plan_memory, with_spare
from paceline.engine.needs import check_fits
from paceline.engine.newcomers import DrafterBuilder
from paceline.engine.quality import known_quality
from paceline.engine.runner import timed_step, try_out
from paceline.engine.verify import make_verifier
from paceline.kernels.build import source_digest
from paceline.models.batch import BLOCK_SIZE, Network
from paceline.models.loader import LoadedModel, load_model
from paceline.models.networks import build_network, check_device
from paceline.models.weights import LazyTensors

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """The models of an engine: loaded, with memory planned and drafters attached; nothing timed."""

    loaded: LoadedModel
    network: Network
    backend: str  # the network's, and why it was chosen
    drafters: dict[str, Drafter]
    plan: MemoryPlan
    target: TargetInfo


def load_parts(config: EngineConfig, loaded: LoadedModel | None = None) -> Parts:
    """Load the models that `config` names and attach the drafters to the target.

    `loaded` takes a model that is in memory already (its weights are consumed); otherwise
    `config.model` is loaded. Raises ModelError or InvalidRequest, naming what does not fit.
    """
    check_device(config.device)
    use_threads(config.threads)
    if loaded is None:
        log.info("reading %s", config.model)
        loaded = load_model(config.model)
    check_fits(config, loaded)
    max_context = loaded.max_context
    if config.max_model_len is not None:
        max_context = min(max_context, config.max_model_len)
    log.info("loading the weights of %s", loaded.name)
    network, why = build_network(
        loaded,
        dtype=config.dtype,
        device=config.device,
        backend=config.backend,
        quantize=config.quantize,
        max_positions=max_context + 1,
    )
    if config.drafter_specs:
        log.info("loading drafters: %s", ", ".join(config.drafter_specs))
    drafters = drafters_for(config, loaded)
    plan = plan_memory(
        config, target=network, drafters=drafters.values(), max_context=loaded.max_context
    )
    network.allocate_kv(plan.num_blocks + plan.branch_blocks)
    try_out(network, loaded.name, longest=plan.max_model_len)
    target = target_info(loaded, network, plan)
    for drafter in drafters.values():
        drafter.attach(target)
    plan = plan.with_weights(network, drafters.values())
    plan = with_spare(plan, config, network, drafters.values())
    return Parts(loaded, network, why, drafters, plan, target)


def build_engine(config: EngineConfig, loaded: LoadedModel | None = None) -> Engine:
    """Builds the engine that `config` describes: its parts, and what their steps cost here.

    Takes and raises what `load_parts` does.
    """
    named = loaded is None
    parts = load_parts(config, loaded)
    loaded, network, plan = parts.loaded, parts.network, parts.plan
    source = CostSource(
        forward=lambda *size: timed_step(network, *size),
        context=min(plan.num_blocks * BLOCK_SIZE, plan.max_model_len),
        clear=lambda tokens: network.clear_kv(tokens // BLOCK_SIZE),
        rows=min(config.token_budget, plan.num_blocks * BLOCK_SIZE, plan.max_model_len),
        requests=min(config.max_num_seqs, plan.num_blocks),
        drafters=parts.drafters,
        # A model that was handed over has no name that anybody could find its costs by again.
        identity=_identity(config, parts) if named else None,
    )
    return Engine(
        config,
        model_name=loaded.name,
        network=network,
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.eos_ids,
        plan=plan,
        backend=parts.backend,
        quality=known_quality(config, loaded) if config.quantize else None,
        drafters=parts.drafters,
        costs=starting_costs(source),
        builder=DrafterBuilder(build_context(config, unread(loaded)), parts.target, plan),
    )


def _identity(config: EngineConfig, parts: Parts) -> dict[str, object]:
    """Return what a step's cost depends on beside the machine: shapes, types and kernels, not
    weights."""
    return {
        "model": parts.loaded.name,
        "shape": hashlib.sha256(repr(parts.loaded.config).encode()).hexdigest()[:16],
        "dtype": config.dtype,
        "device": config.device,
        "network": parts.backend,
        "kernels": source_digest(),
        "quantize": config.quantize,
        "threads": torch.get_num_threads(),
        "drafting": [*config.drafter_specs, *_windows(parts.drafters), *_bytes(parts.drafters)],
    }


def _windows(drafters: Mapping[str, Drafter]) -> list[int | None]:
    """Return the windows of the drafters that have one, None where it is all of the context."""
    return [drafter.window for drafter in drafters.values() if isinstance(drafter, Windowed)]


def _bytes(drafters: Mapping[str, Drafter]) -> list[int]:
    """Return the bytes of the drafters' weights, which tell quantised ones from others."""
    return [drafter.weight_bytes for drafter in drafters.values()]


def drafters_for(config: EngineConfig, loaded: LoadedModel | None) -> dict[str, Drafter]:
    """Build the drafters that the config names for a target.

    Raises InvalidRequest for a draft policy, a window or trees that none of them can follow.
    """
    drafters = make_drafters(config.drafter_specs, build_context(config, loaded))
    length = DraftPolicy.parse(config.draft_policy).length
    most = max((drafter.max_draft_len for drafter in drafters.values()), default=0)
    if length is not None and length > most:
        expected = f"fixed:k with k up to {most}, the longest draft of these drafters"
        raise InvalidRequest("draft_policy", config.draft_policy, expected)
    if config.draft_window is not None and not _windows(drafters):
        expected = "a DFlash drafter beside it: nobody else looks at a window"
        raise InvalidRequest("draft_window", config.draft_window, expected)
    if config.draft_tree and not any(isinstance(d, Branching) for d in drafters.values()):
        expected = "0, or a DFlash drafter beside it: nobody else proposes alternatives"
        raise InvalidRequest("draft_tree", config.draft_tree, expected)
    return drafters


def build_context(config: EngineConfig, loaded: LoadedModel | None) -> BuildContext:
    """Return what the drafters of an engine are built for."""
    return BuildContext(
        target=loaded,
        dtype=config.dtype,
        device=config.device,
        backend=config.backend,
        quantize=config.quantize,
        needs_q=make_verifier(config.rule, config.synthetic).needs_q,
        window=config.draft_window,
    )


def unread(loaded: LoadedModel) -> LoadedModel:
    """Return a model whose weights are in use as one that can be asked what it is: weights that
    were handed over in memory are left out."""
    if isinstance(loaded.weights, LazyTensors):
        return loaded
    return replace(loaded, weights={})


def target_info(loaded: LoadedModel, network: Network, plan: MemoryPlan) -> TargetInfo:
    """Return what drafters may share of the target."""
    return TargetInfo(
        name=loaded.name,
        vocab_size=network.vocab_size,
        hidden_size=network.hidden_size,
        num_layers=network.num_layers,
        max_model_len=plan.max_model_len,
        block_size=BLOCK_SIZE,
        num_blocks=plan.num_blocks,
        network=network,
        tokenizer=loaded.tokenizer,
        eos_ids=loaded.eos_ids,
    )
