"""The parts of a layer, and the work that each asks of a device in one forward.

B requests bring q rows each, T = B·q, over S tokens in the cache. One multiplication and addition
is two FLOP. Formulas are for one layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.roofline.architecture.work import Options, Work, Workload, distinct_experts
from paceline.roofline.device import FORMATS


class Component:
    """A part of a layer. It holds no weights and caches nothing, unless it says so.

    `name` is what the times of a step are listed by.
    """

    name: str
    parameters: int = 0
    format: str = "bf16"

    @property
    def active_parameters(self) -> int:
        """Weights that one row passes."""
        return self.parameters

    @property
    def weight_bytes(self) -> float:
        return self.parameters * FORMATS[self.format].bytes

    def cache_bytes(self, context: int) -> float:
        """Bytes that one request of `context` tokens keeps in memory."""
        return 0.0

    def cache_share(self, options: Options) -> float:
        """The part of these bytes that each device of a tensor-parallel group keeps."""
        return 1.0

    def work(self, load: Workload, total: Workload, options: Options) -> Work:
        """The work of one forward on one device. `load` is the workload of one data-parallel group,
        `total` that of all groups."""
        raise NotImplementedError


@dataclass(frozen=True)
class Projection(Component):
    """Dense weights that each row passes: 2·P·T FLOP over P·bytes."""

    name: str
    parameters: int
    format: str = "bf16"

    def work(self, load: Workload, total: Workload, options: Options) -> Work:
        shards = options.tensor_parallel
        flops, moved = 2.0 * self.parameters * load.rows / shards, self.weight_bytes / shards
        return Work(self.name, "matmul", flops, moved, FORMATS[self.format].compute, load.rows)


@dataclass(frozen=True)
class Experts(Component):
    """Routed experts: a row passes `active` of `experts`, and the weights of those that any row
    chose are read once. Shared experts and the router are Projections of their own."""

    experts: int
    active: int
    parameters: int
    format: str = "bf16"
    name: str = "experts"

    @property
    def active_parameters(self) -> int:
        return self.active * (self.parameters // self.experts)

    def work(self, load: Workload, total: Workload, options: Options) -> Work:
        tokens = options.correlation.tokens(total.batch, total.rows_per_request)
        touched = distinct_experts(self.experts, self.active, tokens)
        share = 1.0 / options.devices
        if options.expert_parallel > 1:
            share *= options.expert_imbalance
        flops = 2.0 * self.active_parameters * total.rows * share
        number = FORMATS[self.format]
        moved = touched * (self.parameters // self.experts) * number.bytes * share
        rows = total.rows * self.active / touched
        return Work(self.name, "matmul", flops, moved, number.compute, rows)


@dataclass(frozen=True, slots=True)
class Reach:
    """The cached entries that a row attends to: one per `ratio` tokens, at most `limit` of them.

    `chosen` limits are picked per row (sparse attention), others are the latest (a window).
    """

    ratio: int = 1
    limit: int | None = None
    chosen: bool = False

    def seen(self, context: float) -> float:
        """Entries that one row attends to behind `context` tokens."""
        entries = context / self.ratio
        return entries if self.limit is None else min(entries, self.limit)

    def read(self, context: int, rows: int, overlap: float) -> float:
        """Entries that `rows` consecutive rows of one request read together."""
        if self.limit is None:
            return self.seen(context)
        further = (rows - 1) * (1.0 - overlap) * self.limit if self.chosen else rows - 1
        return min(context / self.ratio, self.limit + further)

    def kept(self, context: int) -> float:
        """Entries that stay in memory."""
        return context / self.ratio if self.chosen else self.seen(context)


@dataclass(frozen=True)
class CacheAttention(Component):
    """Scores and values over cached entries.

    `pair_flops` per row and entry, over all heads; `entry_bytes` per cached entry, over all KV
    heads. `kv_heads` says into how many parts the entries can be cut among devices (1 for a latent
    that every device keeps).
    """

    pair_flops: float
    entry_bytes: float
    kv_heads: int
    reaches: tuple[Reach, ...] = (Reach(),)
    precision: str = "bf16"
    name: str = "attention"

    def cache_bytes(self, context: int) -> float:
        return self.entry_bytes * sum(reach.kept(context) for reach in self.reaches)

    def cache_share(self, options: Options) -> float:
        return math.ceil(self.kv_heads / options.tensor_parallel) / self.kv_heads

    def work(self, load: Workload, total: Workload, options: Options) -> Work:
        rows, context, overlap = load.rows_per_request, load.context, options.selection_overlap
        # a row sees the rows before it and itself: on average (q + 1)/2 of the q
        pairs = rows * sum(reach.seen(context + (rows + 1) / 2) for reach in self.reaches)
        entries = sum(
            reach.read(context, rows, overlap) + rows / reach.ratio for reach in self.reaches
        )
        flops = self.pair_flops * pairs * load.batch / options.tensor_parallel
        moved = self.entry_bytes * entries * load.batch * self.cache_share(options)
        return Work(self.name, "attention", flops, moved, self.precision, load.rows)


@dataclass(frozen=True)
class State(Component):
    """A recurrent state (gated delta rule): `elements` per request, read once, and written once per
    row or once per forward; 8 FLOP per element and row (decay, kᵀS, outer product, qᵀS)."""

    elements: int
    heads: int
    replayed_elements: int  # per row: the key, value and gates that a replay saves instead
    format: str = "fp32"
    name: str = "state"

    def cache_bytes(self, context: int) -> float:
        return self.elements * FORMATS[self.format].bytes

    def cache_share(self, options: Options) -> float:
        return 1.0 / min(options.tensor_parallel, self.heads)

    def work(self, load: Workload, total: Workload, options: Options) -> Work:
        share, rows = self.cache_share(options), load.rows_per_request
        number = FORMATS[options.state_precision or self.format].bytes
        if options.snapshots == "per-token" or rows == 1:
            moved = self.elements * number * (1 + rows)
        else:
            moved = self.elements * number * 2 + rows * self.replayed_elements * 2.0
        flops = 8.0 * self.elements * load.rows * share
        return Work(self.name, "state", flops, moved * load.batch * share, "fp32", load.rows)


@dataclass(frozen=True)
class Sampling(Component):
    """The choice of tokens, which reads the float32 logits of every row once."""

    vocabulary: int
    name: str = "sampling"

    def work(self, load: Workload, total: Workload, options: Options) -> Work:
        moved = 4.0 * self.vocabulary * load.rows / options.tensor_parallel
        return Work(self.name, "sampling", 0.0, moved, "fp32", load.rows)
