"""The price of a draft, by kind of drafter: the passes that it makes, and the time of these passes.

A pass is either a share of the target's own step, or a forward of the drafter's own network, which
is computed with the same formulas, options and calibration as the target. The target alone pays the
overhead of the step. Networks are read off configs: the model's own MTP layer, EAGLE heads, small
models, DFlash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from paceline.core.errors import InvalidRequest, ModelError, check_integer, check_number
from paceline.roofline.architecture import Architecture, Layers, load_config, read_architecture
from paceline.roofline.architecture.components import Component, Projection, Sampling
from paceline.roofline.architecture.config import LayeredConfig, Precision
from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost.deployment import Deployment
from paceline.roofline.device import IDEAL, Calibration

Config = Mapping[str, object] | str | Path


class DraftPass(NamedTuple):
    """A forward of `network` with so many `rows` a request, so many `times`.

    Without a network it is a share of the target's own step at one row.
    """

    network: Architecture | None
    rows: int
    times: float


@dataclass(frozen=True)
class DrafterCost:
    """A drafter as the roofline sees it. Its drafts are free, unless it says otherwise.

    passes        the passes of a draft of so many tokens, 1 or more
    host_seconds  seconds of the host per draft and request
    model         the network that it keeps in memory beside the target, None for nothing
    max_draft     the longest draft that it can propose, None for no limit of its own
    """

    name: str
    passes: Callable[[int], list[DraftPass]] = lambda draft_length: []
    host_seconds: float = 0.0
    model: Architecture | None = None
    max_draft: int | None = None

    def time(
        self,
        draft_length: int,
        deployment: Deployment,
        load: Workload,
        calibration: Calibration = IDEAL,
    ) -> float:
        """Seconds of a draft of that length beside the target's step; 0 for none.

        Of the target's `load`, the batch and the context count. The plain twin of `Grid.drafts`.
        Raises InvalidRequest for a draft longer than `max_draft`.
        """
        if self.max_draft is not None and draft_length > self.max_draft:
            expected = f"at most {self.max_draft}: the longest draft of {self.name}"
            raise InvalidRequest("draft_length", draft_length, expected)
        if draft_length == 0:
            return 0.0
        seconds = self.host_seconds * load.batch
        for network, rows, times in self.passes(draft_length):
            forward = Workload(load.batch, rows, load.context)
            if network is None:
                step = deployment.forward_time(forward, calibration)
            else:
                beside = deployment.running(network)
                step = beside.forward_time(forward, calibration.within_a_step())
            seconds += times * step.total
        return seconds


def free_drafts() -> DrafterCost:
    """Price drafts that cost nothing: the limit of what a drafter can bring."""
    return DrafterCost("ideal")


def share_of_step(cost: float, per_block: int = 1) -> DrafterCost:
    """Price passes at `cost` of the target's own step at one row, one per `per_block` tokens.

    1 is autoregressive drafting (MTP, EAGLE); 16 a block drafter that yields 16 at once.
    """
    check_number("drafter.cost", cost, 0, 100, "a share of the target's step, 0 or more")
    check_integer("drafter.per_block", per_block, 1, 4096, "drafted tokens per pass")
    return DrafterCost(
        "fraction", lambda length: [DraftPass(None, 1, cost * math.ceil(length / per_block))]
    )


def look_up(seconds: float = 0.0) -> DrafterCost:
    """Price copies from the text (n-grams, suffixes): `seconds` of the host per request."""
    check_number("drafter.seconds", seconds, 0, 60, "seconds, 0 or more")
    return DrafterCost("lookup", host_seconds=seconds)


def mtp(target: Architecture) -> DrafterCost:
    """The target's own draft layer, once per drafted token, with the target's head.

    Raises InvalidRequest for a target that has none.
    """
    if not target.draft_layer:
        expected = f"a drafter that {target.name} has: its config states no draft layer"
        raise InvalidRequest("drafter", "mtp", expected)
    network = _part(target, (Layers(1, target.draft_layer),))
    return _token_by_token("mtp", network, head=_part(target, (), target.head))


def small_model(config: Config, *, precision: Precision | None = None) -> DrafterCost:
    """A small model of its own, once per drafted token. `config` as in `read_architecture`."""
    return _token_by_token("draft model", read_architecture(config, precision=precision))


def eagle(config: Config, target: Architecture) -> DrafterCost:
    """An EAGLE-3 head: a fusion of three of the target's layers once per round, then a layer whose
    attention reads token and feature side by side (twice as wide), and a head of its own vocabulary
    (`draft_vocab_size`; the target's without it)."""
    values = config if isinstance(config, Mapping) else load_config(config)
    drafter = read_architecture(values)
    fields = LayeredConfig(values)
    hidden = drafter.hidden
    _same_hidden(fields.integer("target_hidden_size", default=hidden), target, "target_hidden_size")
    heads = fields.integer("num_attention_heads")
    size = fields.integer("head_dim", default=hidden // heads)
    inputs = size * (heads + 2 * fields.integer("num_key_value_heads", default=heads))
    first = drafter.layers[0]
    doubled = (*first.components, Projection("projections", hidden * inputs))
    others = (Layers(first.count - 1, first.components),) if first.count > 1 else ()
    vocabulary = fields.integer("draft_vocab_size", default=target.vocabulary)
    head = (Projection("head", vocabulary * hidden), Sampling(vocabulary))
    network = _part(drafter, (Layers(1, doubled), *others, *drafter.layers[1:]), head)
    return _token_by_token("eagle", network, once=_fusion(drafter, 3 * target.hidden * hidden))


def block(
    config: Config, target: Architecture, *, precision: Precision | None = None
) -> DrafterCost:
    """A DFlash drafter: one pass drafts the whole block of `block_size` rows, the anchor and a mask
    per drafted token, with the target's own head over the drafted ones; features of
    `target_layer_ids` of the rows just verified are fused into its cache. Convolutions and
    selectors, where a drafter has them, are left out: under 1 % of its weights. `precision` as in
    `read_architecture`.

    Raises ModelError for a config that is none or does not fit the target.
    """
    values = config if isinstance(config, Mapping) else load_config(config)
    dflash = values.get("dflash_config")
    if not isinstance(dflash, Mapping) or "target_layer_ids" not in dflash:
        message = "config: dflash_config with target_layer_ids is missing: no DFlash drafter"
        raise ModelError(message)
    fields = LayeredConfig({**dflash, **values})
    size = fields.integer("block_size", low=2)
    drafter = read_architecture(values, precision=precision)
    _same_hidden(drafter.hidden, target, "hidden_size")
    depth = fields.integer("num_target_layers", default=target.depth)
    if depth != target.depth:
        expected = f"the {target.depth} of {target.name}"
        raise ModelError(f"config: num_target_layers is {depth}; expected {expected}")
    network, head = _part(drafter, drafter.layers), _part(target, (), target.head)
    once = _fusion(drafter, len(dflash["target_layer_ids"]) * target.hidden**2)

    def passes(draft_length: int) -> list[DraftPass]:
        rows = draft_length + 1
        wide = [DraftPass(network, rows, 1), DraftPass(once, rows, 1)]
        return [*wide, DraftPass(head, draft_length, 1)]

    return DrafterCost("dflash", passes, model=network, max_draft=size - 1)


def _token_by_token(
    name: str,
    network: Architecture,
    head: Architecture | None = None,
    once: Architecture | None = None,
) -> DrafterCost:
    """Price one pass of `network` per drafted token, and of `head` where it shares the target's;
    `once` per round before them (EAGLE's fusion of the target's features), over the rows just
    verified.

    The first pass also takes in what the last round committed; it is counted as one row.
    """

    def passes(draft_length: int) -> list[DraftPass]:
        by_token = [part for part in (network, head) if part is not None]
        listed = [DraftPass(part, 1, draft_length) for part in by_token]
        return listed if once is None else [*listed, DraftPass(once, draft_length + 1, 1)]

    return DrafterCost(name, passes, model=network)


def _part(
    model: Architecture, layers: tuple[Layers, ...], head: tuple[Component, ...] = ()
) -> Architecture:
    """Return a model of these layers and head alone, without an embedding table of its own."""
    return replace(model, layers=layers, head=head, tied=True, draft_layer=(), max_context=0)


def _fusion(drafter: Architecture, weights: int) -> Architecture:
    """The projection of the target's features into the drafter's width."""
    return _part(drafter, (Layers(1, (Projection("draft_fusion", weights),)),))


def _same_hidden(hidden: int, target: Architecture, field: str) -> None:
    if hidden != target.hidden:
        expected = f"the {target.hidden} of {target.name}"
        raise ModelError(f"config: {field} is {hidden}; expected {expected}")
