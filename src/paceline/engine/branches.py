"""The paths of a draft tree, and the KV blocks that let one forward verify them all.

A tree is verified as a trunk, which is a chain like any other, and branches. To the target a branch
is one more sequence of the forward: its rows are the nodes that no earlier path has, at the
positions that they would have in a chain, and its block table is that of the path it leaves, with
private blocks from its first node on. Whatever the private blocks hold before that node is copied
there: committed tokens before the forward, and rows of this forward (its ancestors) as their keys
and values are written (`ForwardBatch.sharers`). So a node sees its ancestors exactly where a chain
would have them, and its bits are those that it would have in a chain; no kernel knows of trees.

When a branch stands, its private blocks are copied to the request's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.core import DraftTree
from paceline.engine.grammar import GrammarState
from paceline.models.batch import BLOCK_SIZE

TRUNK = -1  # in place of a branch's number


@dataclass(frozen=True, slots=True)
class Branch:
    """A path of a tree that leaves an earlier one.

    tokens    of the whole path, from the first behind the anchor on
    nodes     a number for each of them: those of the trunk come first, then those of each branch
    shared    how many of them are on the path that it leaves
    parent    the number of the branch that it leaves; TRUNK
    blocks    private KV blocks, from that of its first own node on; () before they are placed
    """

    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    shared: int
    parent: int = TRUNK
    blocks: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Return the number of nodes that no earlier path has."""
        return len(self.tokens) - self.shared

    @property
    def own_tokens(self) -> tuple[int, ...]:
        return self.tokens[self.shared :]

    def block_span(self, anchor: int) -> range:
        """Return the places of its private blocks in the block table, where the anchor is at
        position `anchor`."""
        first, last = anchor + 1 + self.shared, anchor + len(self.tokens)
        return range(first // BLOCK_SIZE, last // BLOCK_SIZE + 1)


def split(tree: DraftTree, count: int, chain: Sequence[int]) -> tuple[int, tuple[Branch, ...]]:
    """Return the first `count` nodes of a tree as the length of a trunk and branches beside it.

    The trunk is how the tree begins the draft `chain`. A node goes on with the path of its parent
    if it is the first child, and starts a branch if not.
    """
    paths: list[list[int]] = [[]]  # nodes of the tree; the trunk first
    left: list[tuple[int, int]] = [(TRUNK, 0)]  # which path each leaves, and behind how many nodes
    place: dict[int, tuple[int, int]] = {-1: (0, 0)}  # path and depth of each node
    for node, parent in enumerate(tree.parents[:count]):
        path, depth = place[parent]
        on_chain = depth < len(chain) and tree.tokens[node] == chain[depth]
        if len(paths[path]) == depth and (path or on_chain):
            paths[path].append(node)
        else:
            left.append((path - 1, depth))
            paths.append([*paths[path][:depth], node])
            path = len(paths) - 1
        place[node] = path, depth + 1
    numbers: dict[int, int] = {}
    for nodes in paths:
        for node in nodes:
            numbers.setdefault(node, len(numbers))
    branches = [
        Branch(
            tuple(tree.tokens[node] for node in nodes),
            tuple(numbers[node] for node in nodes),
            shared,
            parent,
        )
        for nodes, (parent, shared) in zip(paths[1:], left[1:], strict=True)
    ]
    return len(paths[0]), tuple(branches)


def allowed_part(tree: DraftTree, grammar: GrammarState) -> DraftTree:
    """Return the nodes of a tree that a grammar allows behind their ancestors."""
    numbers, kept, allowed = {-1: -1}, DraftTree([], [], []), grammar.reachable(tree)
    nodes = zip(tree.tokens, tree.parents, tree.chances, strict=True)
    for node, (token, parent, chance) in enumerate(nodes):
        if allowed[node]:
            numbers[node] = len(kept.tokens)
            kept.tokens.append(token)
            kept.parents.append(numbers[parent])
            kept.chances.append(chance)
    return kept


class TreeRoom:
    """The room for trees: a draft has up to `nodes`, a step up to `token_budget` rows. Branches lie
    in the `blocks` KV blocks from `first` on, which belong to no request and are free again with
    every step."""

    def __init__(self, nodes: int, token_budget: int, first: int, blocks: int) -> None:
        self.nodes, self._token_budget = nodes, token_budget
        self._first, self._blocks = first, blocks
        self.begin_step(0)

    def begin_step(self, rows: int) -> None:
        """A step begins that has so many rows without branches."""
        self._rows_left, self._used = self._token_budget - rows, 0

    def place(self, branches: Sequence[Branch], trunk: int, anchor: int) -> tuple[Branch, ...]:
        """Give the branches beside a trunk of so many tokens, whose anchor is at position `anchor`,
        their blocks. Branches for which there is no room are left out, with those that leave them.
        """
        placed: list[Branch] = []
        places, numbers, end = {TRUNK: TRUNK}, {node: node for node in range(trunk)}, trunk
        for place, branch in enumerate(branches):
            needed, parent = len(branch.block_span(anchor)), places.get(branch.parent)
            full = branch.count > self._rows_left or needed > self._blocks - self._used
            if parent is None or full:
                continue
            start = self._first + self._used
            self._used += needed
            self._rows_left -= branch.count
            places[place] = len(placed)
            for node in branch.nodes[branch.shared :]:
                numbers[node], end = end, end + 1
            nodes = tuple(numbers[node] for node in branch.nodes)
            blocks = tuple(range(start, start + needed))
            placed.append(replace(branch, nodes=nodes, parent=parent, blocks=blocks))
        return tuple(placed)


def tables(blocks: Sequence[int], branches: Sequence[Branch], anchor: int) -> Iterator[list[int]]:
    """Yield the block table of each placed branch of a request with these `blocks`, as far as the
    branch reaches."""
    made: list[list[int]] = []
    for branch in branches:
        below = blocks if branch.parent == TRUNK else made[branch.parent]
        table = [*below[: branch.block_span(anchor).start], *branch.blocks]
        made.append(table)
        yield table
