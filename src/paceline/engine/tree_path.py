"""The path of a draft tree that stands: rule `match` over a draft with branches.

The target's own token at a node selects the child that has it. The walk ends where there is none,
and that token is the round's last. So the output is that of a chain, or of no draft at all.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.core import Verdict
from paceline.engine.branches import TRUNK
from paceline.engine.draft import Draft
from paceline.engine.masks import RowMasks


class TreePath:
    """The nodes that stand so far, which grow while the target's rows are asked for their tokens.

    tokens    of the nodes
    places    rows of the step's logits: the anchor's, which is `out`, and that of each node; rows
              of branches begin at `branch_out`
    masks     of the same rows; None without a grammar
    branch    the number of the branch that the path is on; TRUNK
    """

    def __init__(self, draft: Draft, out: int, branch_out: int, masks: RowMasks | None) -> None:
        self._trunk, self._out, self._branch_out = draft.length, out, branch_out
        self._children: dict[tuple[int, int], tuple[int, int]] = {}  # by node and token
        for node, token in enumerate(draft.verified):
            self._children[node - 1, token] = node, TRUNK
        for number, branch in enumerate(draft.branches):
            nodes = (-1, *branch.nodes)
            for depth in range(branch.shared, len(branch.tokens)):
                key = nodes[depth], branch.tokens[depth]
                self._children[key] = nodes[depth + 1], number
        self._refused = frozenset() if masks is None else masks.refused
        self._nodes: list[int] = []
        self._mask_places = [0]
        self.tokens: list[int] = []
        self.places = [out]
        self.masks = None if masks is None else masks.along(self._mask_places)
        self.branch = TRUNK

    @property
    def on_trunk(self) -> bool:
        return self.branch == TRUNK

    def verify(self, token_of: Callable[[int], int]) -> Verdict:
        """Walk as far as the target's own tokens lead: token_of(i) is that behind the first i nodes
        of the path, whose row is `places[i]`."""
        node, token = -1, token_of(0)
        while (child := self._children.get((node, token))) is not None:
            node, branch = child
            if node in self._refused:
                break
            self.branch = branch
            self._nodes.append(node)
            self._mask_places.append(node + 1)
            self.tokens.append(token)
            self.places.append(self._place(node, self._out + 1, self._branch_out))
            token = token_of(len(self.tokens))
        return Verdict(len(self.tokens), token)

    def rows(self, first: int, count: int, branch_row: int) -> list[int]:
        """Return the rows of the step that were computed and stand: `count` of committed tokens
        from `first` on, and those of the nodes; rows of branches begin at `branch_row`."""
        committed = range(first, first + count)
        return [*committed, *(self._place(n, first + count, branch_row) for n in self._nodes)]

    def _place(self, node: int, trunk: int, branches: int) -> int:
        return trunk + node if node < self._trunk else branches + node - self._trunk
