"""The memory plan: what the weights take, what KV gets, how long a context that allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.core import InvalidRequest
from paceline.drafters.base import Drafter
from paceline.engine.config import EngineConfig
from paceline.engine.machine import available_memory
from paceline.models.batch import BLOCK_SIZE, Network

KV_SHARE = 0.25  # of the memory that is available once the weights are loaded
PLANNED_CONTEXTS = 8  # full contexts that the default plan makes room for, memory allowing
SPARE_SHARE = 8  # of the target's weights and KV, one part is kept for drafters that come later
# For each node that a tree may have: a branch takes one or two, and a few requests have the largest
# trees at once. What finds no room is not verified.
BRANCH_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes and blocks. Weights and KV count the target's and every drafter's, of which the fields
    `drafter_*` are the drafters' part; the KV rows of all share the slots. `branch_blocks` are of
    the target alone, behind the others, for the branches of drafts. `spare_bytes` are kept for the
    weights and KV of drafters that are loaded later."""

    kv_bytes_per_token: int
    drafter_kv_bytes_per_token: int
    num_blocks: int
    max_model_len: int
    weight_bytes: int = 0
    drafter_weight_bytes: int = 0
    spare_bytes: int = 0
    branch_blocks: int = 0

    def with_weights(self, target: Network, drafters: Iterable[Drafter]) -> MemoryPlan:
        """The plan with what the weights take, known once the drafters share the target's."""
        own = sum(drafter.weight_bytes for drafter in drafters)
        return replace(self, weight_bytes=target.weight_bytes + own, drafter_weight_bytes=own)

    def kv_bytes_of(self, drafter: Drafter) -> int:
        """Return the bytes of a drafter's KV over all slots."""
        return 0 if drafter.kv is None else self.kv_tokens * drafter.kv.bytes_per_token

    @property
    def drafter_bytes(self) -> int:
        """All that drafters may take together: those that are loaded at the start, and the spare
        bytes."""
        kv = self.drafter_kv_bytes_per_token * self.kv_tokens
        return self.drafter_weight_bytes + kv + self.spare_bytes

    @property
    def kv_bytes(self) -> int:
        own = self.kv_bytes_per_token - self.drafter_kv_bytes_per_token
        branches = self.branch_blocks * BLOCK_SIZE * own
        return self.num_blocks * BLOCK_SIZE * self.kv_bytes_per_token + branches

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * BLOCK_SIZE


def plan_memory(
    config: EngineConfig, *, target: Network, drafters: Iterable[Drafter], max_context: int
) -> MemoryPlan:
    """Divide memory: one request of the longest length always fits, so the oldest can go on.

    Raises InvalidRequest when `kv_memory`, or the memory that is left, cannot hold one request of
    `max_model_len` tokens.
    """
    asked = config.max_model_len
    specs = [target.kv_spec] + [d.kv for d in drafters if d.kv is not None]
    per_token = sum(spec.bytes_per_token for spec in specs)
    block_bytes = per_token * BLOCK_SIZE
    wanted = config.kv_memory
    if wanted is None:
        wanted = min(
            int(max(0, available_memory() - (config.spare_drafter_memory or 0)) * KV_SHARE),
            min(PLANNED_CONTEXTS, config.max_num_seqs) * (asked or max_context) * per_token,
        )
    branch_blocks = BRANCH_BLOCKS * config.draft_tree
    branch_bytes = branch_blocks * BLOCK_SIZE * target.kv_spec.bytes_per_token
    num_blocks = (wanted - branch_bytes) // block_bytes
    needed = -(-(asked or 1) // BLOCK_SIZE)
    if num_blocks < needed:
        if config.kv_memory is not None:
            least = needed * block_bytes + branch_bytes
            expected = f"at least {least} bytes: one request of {asked or 1} tokens"
            expected += f" and the branches of drafts (draft_tree {config.draft_tree})" * bool(
                branch_bytes
            )
            raise InvalidRequest("kv_memory", config.kv_memory, expected)
        most = num_blocks * BLOCK_SIZE
        raise InvalidRequest("max_model_len", asked, f"at most {most} tokens, which memory allows")
    max_model_len = asked or min(max_context, num_blocks * BLOCK_SIZE)
    return MemoryPlan(
        kv_bytes_per_token=per_token,
        drafter_kv_bytes_per_token=per_token - target.kv_spec.bytes_per_token,
        num_blocks=num_blocks,
        branch_blocks=branch_blocks,
        max_model_len=max_model_len,
    )


def with_spare(
    plan: MemoryPlan, config: EngineConfig, target: Network, drafters: Iterable[Drafter]
) -> MemoryPlan:
    """Return the plan of an engine whose weights are in memory with the bytes that are kept for
    drafters that are loaded later.

    Unless the config says how many: as much as the largest drafter takes, and at least a share of
    what the target does, as a drafter of its shape takes with an eighth of its layers. Raises
    InvalidRequest where `spare_drafter_memory` does not fit beside the KV.
    """
    asked, left = config.spare_drafter_memory, max(0, available_memory() - plan.kv_bytes)
    if asked is not None:
        if asked > left:
            expected = f"at most {left} bytes, which are free beside the KV cache"
            raise InvalidRequest("spare_drafter_memory", asked, expected)
        return replace(plan, spare_bytes=asked)
    largest = max((d.weight_bytes + plan.kv_bytes_of(d) for d in drafters), default=0)
    target_kv = plan.kv_tokens * target.kv_spec.bytes_per_token
    share = (target.weight_bytes + target_kv) // SPARE_SHARE
    return replace(plan, spare_bytes=min(left, max(largest, share)))
