"""The number of tokens that a drafter would have had accepted, on texts that the target wrote.

Every block is judged by the text itself, and blocks follow one another as in serving: the next one
starts where the one before was rejected. So this is what serving accepts where the text was greedy
and every round drafts a whole block; `paceline evaluate` asks the engine. Tokens that a grammar
forced are guessed and counted here as all others are, where serving commits them by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from paceline.training.anchors import Text, window_of
from paceline.training.packs import Pack, Pick, make_pack


@dataclass(frozen=True, slots=True)
class Score:
    """The score of `blocks` rounds. `length` is the mean acceptance length incl. bonus, taken block
    by block: a product of averages would hide that easy blocks are easy all along. `positions[k]`
    is the share of rounds that would have accepted k + 1 tokens or more."""

    blocks: int
    length: float
    positions: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class BlockTally:
    """Adds up blocks; tallies of several processes may be summed."""

    def __init__(self, slots: int) -> None:
        self.sums = torch.zeros(slots + 1, dtype=torch.float64)

    def add(self, right: torch.Tensor, pack: Pack) -> None:
        """Add packs of packs_of(), whose anchors of a text are neighbours; blocks that serving
        would start from count. right bool [blocks, slots] marks the drafted tokens that are the
        text's."""
        reached = right.cumprod(1).cpu()
        for first, last in pack.blocks:
            visited = walk(reached[first:last].sum(1))
            self.sums[0] += len(visited)
            self.sums[1:] += reached[first:last][visited].sum(0).double()

    def score(self) -> Score:
        blocks = int(self.sums[0])
        positions = tuple((self.sums[1:] / max(1, blocks)).tolist())
        return Score(blocks, 1 + sum(positions), positions)


def walk(accepted: torch.Tensor) -> list[int]:
    """Return the blocks that rounds would start with, out of blocks at neighbouring anchors of
    which `accepted` int [blocks] tokens would be accepted."""
    place, visited = 0, []
    while place < len(accepted):
        visited.append(place)
        place += int(accepted[place]) + 1
    return visited


def packs_of(
    texts: Sequence[Text],
    anchors: int,
    features: Callable[[Text], torch.Tensor],
    size: int,
    mask: int,
    micro: int,
) -> Iterator[Pack]:
    """Yield packs of neighbouring anchors, at most `anchors` of each text."""
    picks = [Pick(text, window_of(text, anchors, size)) for text in texts]
    for start in range(0, len(picks), micro):
        group = picks[start : start + micro]
        yield make_pack(group, [features(pick.text) for pick in group], size, mask)
