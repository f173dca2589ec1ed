"""The tree of n nodes with the largest sum of path probabilities: the acceptance length that a
drafter's own estimates expect is 1 + that sum.

Taking the likeliest node that is left, again and again, finds it, since no node is likelier than
its parent (OPT-Tree, Wang et al., arXiv 2406.17276). A node gives way to two: its next sibling and
its first child. So a tree of n nodes takes n steps over a heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from paceline.core import DraftTree


class SlotToken(NamedTuple):
    """A token that may stand in a slot, and the probability that it does behind its parent.
    `place` is that among the slot's candidates."""

    token: int
    chance: float
    place: int


class _Open(NamedTuple):
    """A place for a node: the child of that rank of a parent that is reached with `chance`."""

    chance: float
    depth: int
    parent: int
    family: Sequence[SlotToken]
    rank: int

    @property
    def candidate(self) -> SlotToken:
        return self.family[self.rank]

    @property
    def reach(self) -> float:
        return self.chance * self.candidate.chance


# Candidates of a slot, the likeliest first, behind the candidate at this place in the slot before;
# before slot 0 the place is 0.
Successors = Callable[[int, int], Sequence[SlotToken]]


def independent(slots: Sequence[Sequence[SlotToken]]) -> Successors:
    """Return the successors of slots whose candidates are the same behind every parent."""
    return lambda slot, _: slots[slot]


def best_tree(successors: Successors, slots: int, nodes: int) -> DraftTree:
    """Return the best tree of up to `nodes` nodes, at most `slots` deep."""
    tree = DraftTree([], [], [])
    heap: list[tuple[float, int, _Open]] = []
    turn = count()  # of equal chances the one that was found first is taken

    def push(place: _Open) -> None:
        if place.rank < len(place.family) and (reach := place.reach) > 0.0:
            heapq.heappush(heap, (-reach, next(turn), place))

    push(_Open(1.0, 0, -1, successors(0, 0), 0))
    while heap and len(tree.tokens) < nodes:
        _, _, place = heapq.heappop(heap)
        candidate, node, depth = place.candidate, len(tree.tokens), place.depth + 1
        tree.tokens.append(candidate.token)
        tree.parents.append(place.parent)
        tree.chances.append(candidate.chance)
        push(place._replace(rank=place.rank + 1))
        if depth < slots:
            push(_Open(place.reach, depth, node, successors(depth, candidate.place), 0))
    return tree
