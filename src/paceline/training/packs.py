"""Packs: several texts and their blocks side by side, for one forward of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from paceline.training.anchors import Text, block_labels
from paceline.training.losses import Soft


@dataclass(frozen=True, slots=True)
class Pick:
    """A text and the anchors drawn for it, int64 [n], ascending and not empty."""

    text: Text
    anchors: torch.Tensor

    @property
    def seen(self) -> int:
        """The number of tokens from the start whose features its blocks may see."""
        return int(self.anchors[-1])


@dataclass(frozen=True, slots=True)
class Pack:
    """Texts side by side. `features` [tokens, K * hidden] are those of every text in turn, up to
    its last anchor, and `tokens` int64 [tokens] their positions; `context[i]` and `blocks[i]` are
    the half-open rows of text i in `tokens` and in `anchors`.

    `ids` int64 [blocks, size] is what the drafter reads (anchor and masks), `labels` int64 and
    `counts` bool [blocks, size - 1] what it should say, and `before` int64 the text's tokens that
    stand one place before the labels. `soft` is the
    target's distribution at the same slots, where it is learnt from.
    """

    features: torch.Tensor
    tokens: torch.Tensor
    context: tuple[tuple[int, int], ...]
    blocks: tuple[tuple[int, int], ...]
    anchors: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor
    counts: torch.Tensor
    before: torch.Tensor
    soft: Soft | None = None

    def to(self, device: str) -> Pack:
        """Return the same pack on another device."""
        if device == "cpu":
            return self
        soft = self.soft and Soft(self.soft.rows.to(device), self.soft.probabilities.to(device))
        names = ("features", "tokens", "anchors", "ids", "labels", "counts", "before")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return replace(self, **moved, soft=soft)


def make_pack(
    picks: Sequence[Pick],
    features: Sequence[torch.Tensor],
    size: int,
    mask: int,
    soft: Soft | None = None,
) -> Pack:
    """Make a pack; `features[i]` [at least picks[i].seen, K * hidden] are those of text i from its
    start."""
    context, blocks, labels, counts = [], [], [], []
    rows = drawn = 0
    for pick in picks:
        context.append((rows, rows := rows + pick.seen))
        blocks.append((drawn, drawn := drawn + len(pick.anchors)))
        behind, slot_counts = block_labels(pick.text, pick.anchors, size)
        labels.append(behind)
        counts.append(slot_counts)
    anchors = torch.cat([pick.anchors for pick in picks])
    slot_labels = torch.cat(labels)
    ids = torch.full((drawn, size), mask)
    ids[:, 0] = torch.cat([pick.text.ids[pick.anchors] for pick in picks])
    return Pack(
        features=torch.cat([part[: pick.seen] for pick, part in zip(picks, features, strict=True)]),
        tokens=torch.cat([torch.arange(pick.seen) for pick in picks]),
        context=tuple(context),
        blocks=tuple(blocks),
        anchors=anchors,
        ids=ids,
        labels=slot_labels,
        counts=torch.cat(counts),
        before=torch.cat((ids[:, :1], slot_labels[:, :-1]), dim=1),
        soft=soft,
    )
