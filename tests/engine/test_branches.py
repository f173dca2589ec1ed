"""A draft tree as a trunk and branches, and the bits of its rows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from paceline.core import DraftTree, Request, SamplingParams
from paceline.engine.branches import TRUNK, TreeRoom, split
from paceline.engine.draft import Draft
from paceline.engine.runner import Runner
from paceline.engine.scheduler import Scheduled
from paceline.models.batch import BLOCK_SIZE, Network
from paceline.models.native_network import NativeNetwork, native_available
from paceline.models.network import TorchNetwork
from tests.kernels.tiny import CONFIGS
from tests.random_weights import random_weights

LENGTH, OWN, SPARE = 400, 26, 80  # tokens; blocks of the request, and of branches


def tree_of(parents: Sequence[int], tokens: Sequence[int] = ()) -> DraftTree:
    return DraftTree(list(tokens) or list(range(len(parents))), list(parents), [0.5] * len(parents))


def random_tree(rng: random.Random, nodes: int, depth: int, vocab: int) -> DraftTree:
    parents, tokens, depths, used = [], [], {-1: 0}, set()
    while len(parents) < nodes:
        parent = rng.choice([node for node, at in depths.items() if at < depth])
        token = rng.randrange(vocab)
        if (parent, token) not in used:
            used.add((parent, token))
            depths[len(parents)] = depths[parent] + 1
            parents.append(parent)
            tokens.append(token)
    return tree_of(parents, tokens)


def test_a_chain_has_no_branches() -> None:
    assert split(tree_of([-1, 0, 1]), 3, [0, 1, 2]) == (3, ())


def test_each_alternative_starts_a_branch() -> None:
    #  0 - 1 - 4        3 and 5 leave the trunk 0, 1, 4, and 6 leaves the branch 3, 7
    #    \\ 3 - 7
    #  2   \\ 6 (behind 3)
    tree = tree_of([-1, 0, -1, 0, 1, -1, 3, 3], [10, 11, 12, 13, 14, 15, 16, 17])
    length, branches = split(tree, 8, [10, 11, 14, 99])
    assert length == 3
    assert [branch.tokens for branch in branches] == [(12,), (10, 13, 16), (15,), (10, 13, 17)]
    assert [branch.parent for branch in branches] == [TRUNK, TRUNK, TRUNK, 1]
    assert [branch.shared for branch in branches] == [0, 1, 0, 2]
    assert [branch.nodes for branch in branches] == [(3,), (0, 4, 5), (6,), (0, 4, 7)]


def test_a_tree_that_leaves_the_chain_at_once_has_no_trunk() -> None:
    length, branches = split(tree_of([-1, 0], [5, 6]), 2, [9, 6])
    assert length == 0 and [branch.tokens for branch in branches] == [(5, 6)]


def test_branches_without_room_are_left_out_with_those_that_leave_them() -> None:
    tree = tree_of([-1, -1, 1, 1, -1], [0, 1, 2, 3, 4])
    length, branches = split(tree, 5, [0])
    assert [branch.tokens for branch in branches] == [(1, 2), (1, 3), (4,)]
    room = TreeRoom(5, token_budget=6, first=100, blocks=9)
    room.begin_step(rows=5)  # one row is left
    (placed,) = room.place(branches, length, anchor=14)
    assert placed.tokens == (4,) and placed.nodes == (1,) and placed.blocks == (100,)
    room = TreeRoom(5, token_budget=60, first=100, blocks=3)
    room.begin_step(rows=5)
    placed = room.place(branches, length, anchor=14)  # the first goes over a block's border
    assert [branch.blocks for branch in placed] == [(100, 101), (102,)]
    assert [branch.tokens for branch in placed] == [(1, 2), (1, 3)]
    assert room.place(branches, length, anchor=14) == ()


def networks() -> list[tuple[str, str]]:
    rows = [("torch", "float32"), ("torch", "bfloat16"), ("native", "bfloat16")]
    return [(backend, dtype) for backend, dtype in rows]


@pytest.fixture(params=networks(), ids="-".join)
def network(request: pytest.FixtureRequest) -> Network:
    backend, dtype = request.param
    config = CONFIGS["qwen3"]
    weights = random_weights(config, 0, getattr(torch, dtype))
    if backend == "torch":
        return TorchNetwork(config, weights, dtype=getattr(torch, dtype))
    runs, why = native_available(config)
    if not runs:
        pytest.skip(why)
    return NativeNetwork(config, weights, LENGTH)


def rows_of(network: Network, tokens: list[int], count: int, draft: Draft) -> torch.Tensor:
    """Logits [1 + nodes, vocabulary] of a request whose last `count` tokens are not computed yet,
    with a draft; features are compared with them, side by side."""
    network.allocate_kv(OWN + SPARE)
    runner = Runner(network, max_num_seqs=1, max_model_len=LENGTH, branches=SPARE)
    request = Request(id="r", prompt_ids=tokens, params=SamplingParams(), seed=0)
    request.blocks = random.Random(1).sample(range(OWN), OWN)
    runner.begin(request)
    if len(tokens) > count:
        runner.forward([Scheduled(request, 0, len(tokens) - count)])
    entry = Scheduled(request, len(tokens) - count, count)
    entry.draft = draft
    output = runner.forward([entry], (0,))
    assert output.features is not None
    features = output.features[count - 1 :].float()
    return torch.cat([output.logits.float(), features], dim=1).clone()


# Around borders of blocks, and in the second chunk of 256 positions.
@pytest.mark.parametrize("length", [1, 15, 16, 17, 29, 250, 300])
def test_a_node_has_the_bits_that_it_has_in_a_chain(network: Network, length: int) -> None:
    rng = random.Random(length)
    tokens = [rng.randrange(network.vocab_size) for _ in range(length)]
    tree = random_tree(rng, 20, 9, network.vocab_size)
    chain = []  # the path of first children
    node = -1
    while node in tree.parents:
        node = tree.parents.index(node)
        chain.append(tree.tokens[node])
    trunk, branches = split(tree, 20, chain)
    room = TreeRoom(20, token_budget=100, first=OWN, blocks=SPARE)
    room.begin_step(rows=30)
    placed = room.place(branches, trunk, length - 1)
    assert len(placed) == len(branches) > 3
    count = rng.randrange(1, min(length, 20) + 1)
    drafted = Draft(tokens=chain, length=trunk, branches=placed)
    rows = rows_of(network, tokens, count, drafted)
    assert len(rows) == 1 + 20
    paths = [(chain[:trunk], range(trunk)), *((b.tokens, b.nodes) for b in placed)]
    for path, nodes in paths:
        alone = rows_of(network, tokens, count, Draft(tokens=path, length=len(path)))
        assert torch.equal(rows[[0, *(node + 1 for node in nodes)]], alone), path


def test_blocks_are_copied_whole(network: Network) -> None:
    network.allocate_kv(6)
    runner = Runner(network, max_num_seqs=2, max_model_len=LENGTH)
    ids = list(range(2 * BLOCK_SIZE + 5))
    one, two = (Request(id=n, prompt_ids=ids, params=SamplingParams(), seed=0) for n in "ab")
    one.blocks, two.blocks = [4, 1, 3], [0, 5, 2]
    runner.begin(one)
    runner.begin(two)
    expected = runner.forward([Scheduled(one, 0, len(ids))]).logits.clone()
    network.copy_blocks([4, 1, 3], [0, 5, 2])
    again = runner.forward([Scheduled(two, len(ids) - 1, 1)]).logits
    assert torch.equal(again, expected)
    if isinstance(network, NativeNetwork):  # which writes to memory by itself
        with pytest.raises(IndexError):
            network.copy_blocks([0, 1], [2, 6])
