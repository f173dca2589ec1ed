"""Trees of draft tokens: the best of a size by the drafter's chances, and what drafters give."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core import DraftTree, InvalidRequest, SamplingParams
from paceline.drafters import block_draws
from paceline.drafters.block_draws import BlockDraws
from paceline.drafters.draw import Drawn
from paceline.drafters.trees import SlotToken, best_tree, independent
from paceline.engine.engine import Engine
from paceline.kernels import build
from paceline.kernels.trees import can_grow, draft_tree
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.config import read_dflash_config
from tests.drafters.watched import make_engine
from tests.models.dflash.tiny import config_json, write_drafter

SLOTS, WIDTH = 3, 3


def chances_of(tree: DraftTree) -> list[float]:
    """Return the probability of each node's path."""
    reached = {-1: 1.0}
    for node, (parent, chance) in enumerate(zip(tree.parents, tree.chances, strict=True)):
        reached[node] = reached[parent] * chance
    return list(reached.values())[1:]


@pytest.mark.parametrize("nodes", range(1, 12))
def test_no_tree_of_a_size_expects_more(nodes: int) -> None:
    rng = random.Random(nodes)
    for _ in range(20):
        drawn = [[rng.random() for _ in range(WIDTH)] for _ in range(SLOTS)]
        slots = [sorted((c / sum(row) for c in row), reverse=True) for row in drawn]
        candidates = [[SlotToken(i, c, i) for i, c in enumerate(row)] for row in slots]
        tree = best_tree(independent(candidates), SLOTS, nodes)
        places = itertools.chain(*(itertools.product(range(WIDTH), repeat=n + 1) for n in range(3)))
        every = [math.prod(slots[depth][i] for depth, i in enumerate(path)) for path in places]
        assert len(tree.tokens) == nodes
        assert sum(chances_of(tree)) == pytest.approx(sum(sorted(every, reverse=True)[:nodes]))
        assert chances_of(tree) == sorted(chances_of(tree), reverse=True)


def test_a_tree_is_no_larger_than_there_are_candidates() -> None:
    tree = best_tree(lambda *_: [SlotToken(5, 0.5, 0), SlotToken(6, 0.0, 1)], 2, 9)
    assert tree == DraftTree([5, 5], [-1, 0], [0.5, 0.5])


@pytest.mark.skipif(not build.available()[0], reason="no native kernels")
@pytest.mark.parametrize("size", [3, 16, 128, 129, 1000, 16387])
@pytest.mark.parametrize("cut", [False, True])
def test_native_trees_are_those_of_the_twin(
    size: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(size)
    ids = torch.arange(size) * 3 + 1 if cut else None
    draws = BlockDraws(read_dflash_config(config_json()), "argmax", ids)
    for spread in (0.3, 3.0, 60.0):
        logits = spread * torch.randn(9, size, generator=generator)
        logits[:, 0] = -torch.inf
        best, places = logits.softmax(-1).max(-1)
        tokens = (places if ids is None else ids[places]).tolist()
        output = BlockOutput(tokens, best.tolist(), logits)
        drafted = [Drawn(*pair) for pair in zip(tokens, [None] * 9, best.tolist(), strict=True)]
        rows = slice(1, 8)
        for nodes in (1, 7, 31):
            assert can_grow(logits[rows])
            tree = draws._tree(output, rows, drafted[rows], nodes)
            with monkeypatch.context() as patch:
                patch.setattr(block_draws, "can_grow", lambda _: False)
                twin = draws._tree(output, rows, drafted[rows], nodes)
            assert tree.tokens == twin.tokens and tree.parents == twin.parents
            assert tree.chances == pytest.approx(twin.chances, rel=1e-5)
            assert 0 < len(tree.tokens) <= nodes


@pytest.mark.skipif(not build.available()[0], reason="no native kernels")
def test_of_equal_logits_the_first_tokens_are_taken() -> None:
    logits = torch.zeros(2, 300)
    tree = draft_tree(logits, None, [7, 0], [1 / 300, 1 / 300], 3, 8)
    # The drafted token comes first; of 300 equal ones three are candidates.
    assert tree.tokens[:4] == [7, 0, 1, 2] and tree.parents[:4] == [-1] * 4
    assert tree.chances == pytest.approx([1 / 300] * 8)


@pytest.mark.parametrize("kind", ["dflash", "hybrid"])
@pytest.mark.parametrize("second", [False, True], ids=["DFlash", "DFlash-2"])
def test_a_tree_begins_with_the_draft(tmp_path: Path, kind: str, second: bool) -> None:
    """Its path of first children is how the draft begins, and its siblings differ."""
    folder = write_drafter(tmp_path / "drafter", block=6, second=second)
    engine = make_engine(f"d={kind}:{folder}", draft_tree=12)
    coupled = make_engine(f"d={kind}:{folder},draw=coupled", draft_tree=12)
    params = [
        SamplingParams(temperature=t, seed=1, max_tokens=20, ignore_eos=True) for t in (0.0, 1.0)
    ]
    assert check_trees(engine, params) > 10
    assert check_trees(coupled, params[1:]) == 0


def check_trees(engine: Engine, params: list[SamplingParams]) -> int:
    """Check the trees of two requests with each of the parameters, and count them."""
    drafter: Any = engine.drafters["d"]
    proposed, propose = [], drafter.propose_trees

    def watched(requests: Any, lengths: Any, nodes: Any) -> Any:
        batch = propose(requests, lengths, nodes)
        plain = propose(requests, lengths, [0] * len(requests))
        assert plain.tokens == batch.tokens and plain.trees is None
        proposed.extend(zip(batch.tokens, batch.trees or [None] * len(requests), strict=True))
        return batch

    drafter.propose_trees = watched
    prompts = [[5, 9, 200, 31], [5, 9, 200]]
    for index, (prompt, each) in enumerate(itertools.product(prompts, params)):
        engine.add(engine.make_requests(prompt, each, request_id=str(index)))
    while engine.has_work:
        engine.step()
    assert len(proposed) > 10
    trees = [(tokens, tree) for tokens, tree in proposed if tree is not None]
    for tokens, tree in trees:
        assert len(tree.tokens) == 12 or len(tokens) == 1  # slot
        first, node = [], -1
        while node in tree.parents:
            node = tree.parents.index(node)
            first.append(tree.tokens[node])
        assert first == tokens[: len(first)]
        pairs = list(zip(tree.parents, tree.tokens, strict=True))
        assert len(set(pairs)) == len(pairs)
    return len(trees)


def test_nobody_else_proposes_trees() -> None:
    with pytest.raises(InvalidRequest, match=r"draft_tree: got 7; expected 0, or a DFlash drafter"):
        make_engine("ngram", draft_tree=7)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_trees_are_refused_under_other_rules(rule: str) -> None:
    with pytest.raises(InvalidRequest, match=f"draft_tree: got 7; expected 0 with rule {rule}"):
        make_engine("ngram", draft_tree=7, rule=rule)
