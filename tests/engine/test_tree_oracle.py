"""Losslessness of trees by exact enumeration, over several rounds: the real split, the real walk,
the real rows and the real keying of noise, over a tiny random process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from paceline.core import DraftTree, Request, SamplingParams, Verdict
from paceline.drafters.trees import SlotToken, best_tree
from paceline.engine import sampler
from paceline.engine.branches import split
from paceline.engine.draft import Draft
from paceline.engine.masks import RowMasks
from paceline.engine.tree_path import TreePath
from tests.engine import oracle
from tests.engine.oracle import BIASED, EXACT, GAMMA, Outcomes, error, logits

Walk = Callable[[TreePath, Callable[[int], int]], Verdict]


def tree_of(said: tuple[int, ...], nodes: int) -> tuple[DraftTree, list[int]]:
    """Return the best tree of the process Q behind a text, and its chain of first children."""
    texts: dict[tuple[int, int], tuple[int, ...]] = {(-1, 0): said}

    def successors(slot: int, before: int) -> list[SlotToken]:
        text = texts[slot - 1, before]
        law = oracle.Q[text]
        order = np.argsort(-law, kind="stable")
        found = []
        for token in order.tolist():
            index = before * oracle.VOCAB + token
            texts[slot, index] = (*text, token)
            found.append(SlotToken(token, float(law[token]), index))
        return found

    tree = best_tree(successors, GAMMA, nodes)
    chain, node = [], -1
    while node in tree.parents:
        node = tree.parents.index(node)
        chain.append(tree.tokens[node])
    return tree, chain


def law(
    outcomes: Outcomes,
    nodes: int,
    walk: Walk = TreePath.verify,
    allowed: Callable[[tuple[int, ...]], int] | None = None,
) -> dict[tuple[int, ...], float]:
    """Distribution of the first oracle.LENGTH output tokens under trees of so many nodes."""

    def program() -> tuple[int, ...]:
        request = Request(
            id="r", prompt_ids=[0], params=SamplingParams(temperature=1.0), seed=7,
            eos_ids=frozenset(),
        )  # fmt: skip
        while request.output_len < oracle.LENGTH:
            said = tuple(request.output_ids)
            tree, chain = tree_of(said, nodes)
            trunk, branches = split(tree, nodes, chain)
            draft = Draft(tokens=chain, length=trunk, branches=branches)
            contexts = {0: said}
            for path in (range(trunk), *(branch.nodes for branch in branches)):
                tokens = chain if path == range(trunk) else branches[_of(branches, path)].tokens
                for depth, node in enumerate(path):
                    contexts[node + 1] = (*said, *tokens[: depth + 1])
            rows = torch.stack([logits(oracle.P, contexts[i]) for i in range(len(contexts))])
            masks = None
            if allowed is not None:
                bits = [[allowed(contexts[i])] for i in range(len(contexts))]
                masks = RowMasks(np.array(bits, dtype=np.uint32), oracle.VOCAB)
            path = TreePath(draft, 0, 1 + trunk, masks)
            argmax, finite = rows.argmax(-1).tolist(), [True] * len(rows)
            target = sampler.TargetRows(
                request, rows, argmax, finite, path.tokens, places=path.places, masks=path.masks
            )
            verdict = walk(path, target.token)
            assert len(path.tokens) == verdict.accepted
            request.tokens += [*path.tokens, verdict.next_token]
        return tuple(request.output_ids[: oracle.LENGTH])

    total: dict[tuple[int, ...], float] = {}
    for weight, tokens in outcomes.paths(program):
        total[tokens] = total.get(tokens, 0.0) + weight
    return total


def _of(branches: tuple, nodes: tuple[int, ...]) -> int:
    return next(i for i, branch in enumerate(branches) if branch.nodes == nodes)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6])
def test_trees_keep_the_targets_law(outcomes: Outcomes, nodes: int) -> None:
    assert error(law(outcomes, nodes)) < EXACT


def not_twice(context: tuple[int, ...]) -> int:
    """A grammar in which no token follows itself."""
    everything = 2**oracle.VOCAB - 1
    return everything & ~(1 << context[-1]) if context else everything


@pytest.mark.parametrize("nodes", [4, 9])
def test_trees_keep_the_law_that_a_grammar_leaves(
    outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    for name, value in {"VOCAB": 3, "LENGTH": 2}.items():
        monkeypatch.setattr(oracle, name, value)
    for name, seed in {"P": 1, "Q": 2}.items():
        monkeypatch.setattr(oracle, name, oracle.process(seed))
    assert error(law(outcomes, nodes, allowed=not_twice), not_twice) < EXACT


def test_control_a_walk_that_tries_another_child(outcomes: Outcomes) -> None:
    """Why the walk ends where the target's token is no child: to take a child all the same is to
    believe the draft."""

    def generous(path: TreePath, token_of: Callable[[int], int]) -> Verdict:
        verdict = path.verify(token_of)
        node = path._nodes[-1] if path._nodes else -1
        children = [token for at, token in path._children if at == node]
        return verdict._replace(next_token=children[0]) if children else verdict

    assert error(law(outcomes, 2, generous)) > BIASED
