"""The kinds of drafters that the roofline prices: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import DrafterCost
from paceline.roofline.cost.drafters import block, eagle, mtp, small_model


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """A way of drafting: how its cost may be stated, and how engines call it (None: they lack it).

    costs        the fields of a drafter that state its cost, one of them
    reader       reads its cost off a config: (config, target)
    own_layer    reads its cost off the target's own draft layer, where no field states it
    drafts_block one pass drafts a whole block
    paceline     kind of `paceline serve --drafter`
    vllm         `method` of --speculative-config
    sglang       --speculative-algorithm
    checkpoint   the drafter is a checkpoint of its own
    """

    costs: tuple[str, ...] = ()
    reader: Callable[[Mapping[str, Any], Architecture], DrafterCost] | None = None
    own_layer: Callable[[Architecture], DrafterCost] | None = None
    drafts_block: bool = False
    paceline: str | None = None
    vllm: str | None = None
    sglang: str | None = None
    checkpoint: bool = False

    @property
    def needs_cost(self) -> bool:
        return "config" in self.costs


EITHER = ("cost", "config")
KINDS = {
    "ideal": DrafterKind(),
    "mtp": DrafterKind(costs=("cost",), own_layer=mtp, vllm="mtp", sglang="NEXTN"),
    "eagle3": DrafterKind(
        costs=EITHER, reader=eagle, vllm="eagle3", sglang="EAGLE3", checkpoint=True
    ),
    "draft_model": DrafterKind(
        costs=EITHER,
        reader=lambda config, target: small_model(config),
        paceline="draft_model",
        vllm="draft_model",
        sglang="STANDALONE",
        checkpoint=True,
    ),
    "dflash": DrafterKind(
        costs=EITHER,
        reader=block,
        drafts_block=True,
        paceline="dflash",
        vllm="dflash",
        sglang="DFLASH",
        checkpoint=True,
    ),
    "ngram": DrafterKind(costs=("seconds",), paceline="ngram", vllm="ngram", sglang="NGRAM"),
    "suffix": DrafterKind(costs=("seconds",), paceline="suffix", vllm="suffix"),
}
