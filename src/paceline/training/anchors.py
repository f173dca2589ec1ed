"""Anchors: the tokens behind which a drafter learns to draft, and the labels of its drafts.

An anchor is a token of an answer with another one behind it: in serving, too, a block starts at the
last token that the target committed. Anchors are drawn anew in every epoch (arXiv 2602.06036, A.1:
random anchors beat fixed blocks by far), from counters and not from a generator's state, so that a
resumed run draws what an uninterrupted one would have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Text:
    """A training text: `ids` int64 [tokens], and `said` bool [tokens], the tokens that may be
    learnt. `number` is its place in the training set, by which random draws and features are
    kept."""

    number: int
    ids: torch.Tensor
    said: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)


def valid_anchors(said: torch.Tensor) -> torch.Tensor:
    """Return the positions int64 [n], ascending, that the target said and said another token
    behind."""
    return (said[:-1] & said[1:]).nonzero()[:, 0]


def random_for(seed: int, epoch: int, number: int) -> np.random.Generator:
    """Return a generator for one text of one epoch; `number` is below 2**32."""
    key = np.array([seed, epoch << 32 | number], dtype=np.uint64)  # a list would become floats
    return np.random.Generator(np.random.Philox(key=key))


def draw_anchors(text: Text, count: int, seed: int, epoch: int) -> torch.Tensor:
    """Draw at most `count` valid anchors, uniform without replacement, ascending int64 [n]."""
    valid = valid_anchors(text.said)
    if len(valid) <= count:
        return valid
    chosen = random_for(seed, epoch, text.number).choice(len(valid), size=count, replace=False)
    return valid[torch.from_numpy(np.sort(chosen))]


def window_of(text: Text, count: int, size: int) -> torch.Tensor:
    """Return at most `count` neighbouring anchors for evaluations. Their place depends on the
    number of the text; where possible, blocks of `size` tokens follow each of them."""
    valid = valid_anchors(text.said)
    roomy = valid[: max(1, len(valid) - (size - 2))]
    last = max(0, len(roomy) - count)
    first = 0 if last == 0 else int(random_for(0, 0, text.number).integers(last + 1))
    return roomy[first : first + count]


def block_labels(text: Text, anchors: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the labels of slots 1 to `size` - 1 behind each anchor, int64 [anchors, size - 1], and
    a bool mask of the labels that count: all up to the end of what the target said in one go."""
    slots = anchors[:, None] + torch.arange(1, size)
    inside = slots < len(text)
    slots = slots.clamp(max=len(text) - 1)
    return text.ids[slots], (inside & text.said[slots]).cumprod(1).bool()
