"""Drafts as drafters give them, and the verdicts of verification rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

Array = Any  # of numpy or torch: core imports neither


@dataclass(slots=True)
class SparseRow:
    """A draft distribution over a few candidate tokens; every other token has probability 0."""

    ids: Array  # int64 [k]
    probs: Array  # float [k], sums to 1


class DraftTree(NamedTuple):
    """Draft tokens with alternatives. Node i is `tokens[i]`, behind node `parents[i]`, which comes
    before it, or behind the request's last token where that is -1; no two children of a node have
    the same token. `chances[i]` is the drafter's estimate that node i is accepted given that its
    parent is.

    Nodes are in the order of their worth: the first n are a tree as well, for every n. The first
    child of a node is the likeliest; the path of first children begins the chain beside the tree.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float]


@dataclass(slots=True)
class DraftBatch:
    """Draft tokens for a batch of requests, ragged: `tokens[i]` are those of the i-th request.

    `q[i]` says what the i-th draft was drawn from: None (deterministic: a one-hot) or one row per
    draft token, each a float array [vocabulary] or a SparseRow. `confidence[i][j]` in [0, 1] is the
    drafter's own estimate that token j is accepted given that those before it are. `parts[i]` names
    the part that made the i-th draft, of a drafter that has several. `from_others[i]` says that the
    i-th draft was looked up in the text of other requests: what of it is not committed must not be
    shown to the client. `trees[i]` holds alternatives to the i-th draft, which is then
    deterministic; None: there are none. `yields[i]` says that the i-th draft is no better than what
    the drafter looked up in the same round, which is kept.
    """

    tokens: list[list[int]]
    q: list[list[Array] | None] | None = None
    confidence: list[list[float]] | None = None
    parts: list[str] | None = None
    from_others: list[bool] | None = None
    trees: list[DraftTree | None] | None = None
    yields: list[bool] | None = None

    @property
    def lengths(self) -> list[int]:
        return [len(t) for t in self.tokens]

    def q_rows(self, index: int) -> list[Array] | None:
        return None if self.q is None else self.q[index]

    def tree(self, index: int) -> DraftTree | None:
        return None if self.trees is None else self.trees[index]

    def is_wanted(self, index: int) -> bool:
        """Return whether the i-th draft replaces what was looked up."""
        return bool(self.tokens[index]) and not (self.yields is not None and self.yields[index])

    def part(self, index: int) -> str | None:
        return None if self.parts is None else self.parts[index]

    def is_from_others(self, index: int) -> bool:
        return self.from_others is not None and self.from_others[index]


class Verdict(NamedTuple):
    """Decision over one request's draft: the first `accepted` tokens stand, then `next_token`."""

    accepted: int
    next_token: int
    distance: float = 0.0  # under a lossy budget: total variation that it used
    replaced: int = 0  # and draft tokens that stand for another one of the target's


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Shape of one model's KV rows: what a slot costs. `dtype_bytes` is bytes per element."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype_bytes: int

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes
