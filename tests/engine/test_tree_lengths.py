"""The policy `throughput` chooses between chain and tree by what rows cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core import CutReason, DraftTree
from paceline.drafters.trees import SlotToken, best_tree, independent
from paceline.engine.costs import Costs
from paceline.engine.draft import Draft, shortened
from paceline.engine.lengths import ThroughputLengths
from paceline.engine.scheduler import Scheduled
from paceline.engine.step_cost import StepCost
from tests.engine.test_lengths import entries

SLOTS, NODES = 4, 9
FIRST, SECOND = 0.9, 0.08  # the chances of a slot's two candidates


def rows_at(price: float) -> Costs:
    """A step of one row takes a second, each further row `price` seconds."""
    return Costs(StepCost([1, 64], [1.0, 1.0 + 63 * price]))


def tree_of(first: float = FIRST, second: float = SECOND, nodes: int = NODES) -> DraftTree:
    slots = [[SlotToken(7, first, 0), SlotToken(8, second, 1)]] * SLOTS
    return best_tree(independent(slots), SLOTS, nodes)


def give_tree(entry: Scheduled, tree: DraftTree) -> None:
    chain = [7] * SLOTS
    sure = [tree.chances[0]] * SLOTS
    entry.draft = Draft(proposed=chain, tokens=chain, length=SLOTS, confidence=sure, tree=tree)


def cut(lengths: ThroughputLengths, batch: list[Scheduled]) -> list[Draft]:
    kept = lengths.verify_lengths(batch, rows=len(batch), decoding=len(batch))
    return [shortened(entry.draft, count) for entry, count in zip(batch, kept, strict=True)]


def verified(price: float) -> Draft:
    (entry,) = entries(1, SLOTS)
    give_tree(entry, tree_of())
    (draft,) = cut(ThroughputLengths(rows_at(price)), [entry])
    return draft


def test_the_tree_is_verified_where_rows_are_cheap() -> None:
    draft = verified(0.01)
    assert draft.branches and draft.length + draft.branch_rows == NODES


def test_the_chain_is_verified_where_rows_are_dear() -> None:
    draft = verified(0.3)
    assert draft.verified == [7] * SLOTS and not draft.branches


def test_nothing_is_verified_where_rows_cost_more_than_they_bring() -> None:
    draft = verified(1.0)
    assert draft.length == 0 and not draft.branches and draft.cut_by is CutReason.COST


def test_the_dearer_rows_are_the_fewer_nodes_are_verified() -> None:
    drafts = [verified(price) for price in (0.0, 0.02, 0.06, 0.3, 0.45, 1.0)]
    rows = [draft.length + draft.branch_rows for draft in drafts]
    assert rows == sorted(rows, reverse=True) and len(set(rows)) >= 4
    assert rows[0] == NODES and rows[-1] == 0


@pytest.mark.parametrize("price", [0.0, 0.02, 0.06, 0.2, 0.5])
@pytest.mark.parametrize(("first", "second"), [(0.9, 0.08), (0.5, 0.4), (0.4, 0.3)])
def test_no_other_number_of_nodes_gives_more_tokens_a_second(
    price: float, first: float, second: float
) -> None:
    (entry,) = entries(1, SLOTS)
    tree = tree_of(first, second)
    give_tree(entry, tree)
    (got,) = ThroughputLengths(rows_at(price)).verify_lengths([entry], rows=1, decoding=1)
    reached = {-1: 1.0}
    for node, (parent, chance) in enumerate(zip(tree.parents, tree.chances, strict=True)):
        reached[node] = reached[parent] * chance

    def speed(nodes: int) -> float:
        return sum(reached[node] for node in range(-1, nodes)) / (1.0 + price * nodes)

    assert speed(got) == pytest.approx(max(map(speed, range(NODES + 1))))


def test_alternatives_give_way_to_the_likelier_tokens_of_another_request() -> None:
    """Ten rows are free, and two of those are the requests' own."""
    lengths = ThroughputLengths(Costs(StepCost([1, 10, 64], [1.0, 1.0, 55.0])))
    batch = entries(2, SLOTS)
    give_tree(batch[0], tree_of())
    batch[1].draft = replace(batch[1].draft, confidence=[0.9] * SLOTS)
    (alone,) = cut(lengths, batch[:1])
    beside, other = cut(lengths, batch)
    assert alone.branches and not beside.branches
    assert beside.length == other.length == SLOTS


def test_what_became_of_the_drafters_chances_decides_about_its_tree() -> None:
    (entry,) = entries(1, SLOTS)
    lengths = ThroughputLengths(rows_at(0.2))
    rows = []
    for _ in range(40):
        give_tree(entry, tree_of())
        (entry.draft,) = cut(lengths, [entry])
        rows.append(entry.draft.length + entry.draft.branch_rows)
        lengths.observe(entry, [9])
    assert rows[0] >= SLOTS and rows[-1] == 0
