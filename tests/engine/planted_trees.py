"""A DFlash drafter whose drafts have planted alternatives: random tokens and true ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from paceline.core import DraftBatch, DraftTree, Request
from paceline.drafters.reference import Recorder
from paceline.engine.engine import Engine


class TreePlanter(Recorder):
    """Gives each draft a tree of its first tokens, random ones and, behind a random number of
    those, the true ones; it records the chains and counts the trees that it has planted."""

    def __init__(self, drafter: Any, truth: dict[tuple[int, ...], list[int]], rate: float) -> None:
        super().__init__(drafter)
        self._truth, self._rate, self._rng, self.planted = truth, rate, random.Random(3), 0

    def propose_trees(
        self, requests: Sequence[Request], lengths: Sequence[int], nodes: Sequence[int]
    ) -> DraftBatch:
        proposed = self.propose(requests, lengths)
        tokens = proposed.tokens
        work = zip(requests, tokens, nodes, strict=True)
        proposed.trees = [self._tree(r, chain, n) if chain and n else None for r, chain, n in work]
        return proposed

    def _tree(self, request: Request, chain: list[int], nodes: int) -> DraftTree:
        rng, self.planted = self._rng, self.planted + 1
        tree, depths = DraftTree([], [], []), {-1: 0}
        children: dict[tuple[int, int], int] = {}

        def child(parent: int, token: int) -> int:
            node = children.get((parent, token))
            if node is None:
                node = children[parent, token] = len(tree.tokens)
                tree.tokens.append(token)
                tree.parents.append(parent)
                tree.chances.append(0.5)
                depths[node] = depths[parent] + 1
            return node

        tip = -1
        for token in chain[: rng.randrange(len(chain) + 1)]:
            tip = child(tip, token)
        for _ in range(rng.randrange(3)):
            self._add_random(depths, len(chain), child)
        tip, known = -1, self._truth.get(tuple(request.prompt_ids), [])
        for token in known[request.output_len :][: len(chain)]:
            if rng.random() > self._rate:
                break
            tip = child(tip, token)
        while len(tree.tokens) < nodes:
            self._add_random(depths, len(chain), child)
        return DraftTree(*(part[:nodes] for part in tree))

    def _add_random(self, depths: dict[int, int], most: int, child: Any) -> None:
        parents = [node for node, depth in depths.items() if depth < most]
        child(self._rng.choice(parents), self._rng.randrange(256))


def plant_trees(
    engine: Engine, truth: dict[tuple[int, ...], list[int]], rate: float = 0.8
) -> TreePlanter:
    """Let the only drafter of an engine, of kind dflash, propose planted trees."""
    (name,) = engine.drafters
    planter = TreePlanter(engine.drafters[name], truth, rate)
    engine.drafters[name] = engine.drafting.drafters[name] = planter  # type: ignore[index]
    return planter
