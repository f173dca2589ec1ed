"""Texts, their anchors, and packs: several texts and their blocks, for one forward of a drafter.

An anchor is a token of an answer with another one behind it: in serving, too, a block starts at the
last token that the target committed. Anchors are drawn anew in every epoch (arXiv 2602.06036, A.1:
random anchors beat fixed blocks by far), from counters and not from a generator's state, so that a
resumed run draws what an uninterrupted one would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from paceline.training.seen import Seen, Soft


@dataclass(frozen=True, slots=True)
class Text:
    """A training text: `ids` int64 [tokens], and `said` bool [tokens], the tokens that may be
    learnt. `number` is its place in the training set, by which random draws and features are
    kept, and `source` names where its prompt came from. `temperature` is that of the target's
    distribution where the answer was drawn from that alone; 0 for a greedy answer, and for one
    that a grammar, penalties or a cut of the distribution had a part in."""

    number: int
    ids: torch.Tensor
    said: torch.Tensor
    source: str = ""
    temperature: float = 0.0

    def __len__(self) -> int:
        return len(self.ids)

    def needed(self, window: int | None) -> int:
        """Return the first token that a block behind any anchor may see; all with no `window`."""
        if window is None:
            return 0
        return first_seen(int(valid_anchors(self.said)[0]), window)


def first_seen(anchor: int, window: int | None) -> int:
    """Return the first token of context that the block of an anchor sees in so many tokens."""
    return 0 if window is None else max(0, anchor - window + 1)


def valid_anchors(said: torch.Tensor) -> torch.Tensor:
    """Return the positions int64 [n], ascending, that the target said and said another token
    behind."""
    return (said[:-1] & said[1:]).nonzero()[:, 0]


def random_for(seed: int, epoch: int, number: int) -> np.random.Generator:
    """Return a generator for one text of one epoch; `number` is below 2**32."""
    key = np.array([seed, epoch << 32 | number], dtype=np.uint64)  # a list would become floats
    return np.random.Generator(np.random.Philox(key=key))


def seed_for(seed: int, step: int, rank: int) -> int:
    """Return the seed of what process `rank` draws with torch's generator in one step."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> 1)


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


@dataclass(frozen=True, slots=True)
class Pick:
    """A text and the anchors drawn for it, int64 [n], ascending and not empty."""

    text: Text
    anchors: torch.Tensor

    @property
    def seen(self) -> int:
        """The number of tokens from the start whose features its blocks may see."""
        return int(self.anchors[-1])

    def context(self, window: int | None) -> int:
        """Return the number of tokens that its blocks see, each at most `window` of them."""
        return self.seen - first_seen(int(self.anchors[0]), window)


def side_by_side(
    picks: Sequence[Pick], most: int, tokens: int | None, window: int | None, padded: bool
) -> Iterator[list[Pick]]:
    """Yield picks, in their order, in groups of at most `most` texts that take at most `tokens`
    tokens of context, with `padded` when all are padded to the longest. A longer text is a group of
    its own."""
    group: list[Pick] = []
    lengths: list[int] = []
    for pick in picks:
        lengths.append(pick.context(window))
        taken = len(lengths) * max(lengths) if padded else sum(lengths)
        if group and (len(group) == most or (tokens is not None and taken > tokens)):
            yield group
            group, lengths = [], lengths[-1:]
        group.append(pick)
    if group:
        yield group


def block_labels(picks: Sequence[Pick], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the labels of slots 1 to `size` - 1 behind each anchor of all picks, int64 [anchors,
    size - 1], and a bool mask of the labels that count: all up to the end of what the target said
    in one go."""
    ids = torch.cat([pick.text.ids for pick in picks])
    said = torch.cat([pick.text.said for pick in picks])
    counts = torch.tensor([len(pick.anchors) for pick in picks])
    lengths = torch.tensor([len(pick.text) for pick in picks])
    ends = lengths.cumsum(0)
    start, end = ((ends - lengths).repeat_interleave(counts), ends.repeat_interleave(counts))
    anchors = torch.cat([pick.anchors for pick in picks])
    slots = (start + anchors)[:, None] + torch.arange(1, size)
    inside = slots < end[:, None]
    slots = torch.minimum(slots, end[:, None] - 1)
    return ids[slots], (inside & said[slots]).cumprod(1).bool()


@dataclass(frozen=True, slots=True)
class Pack:
    """Texts side by side. `features` [tokens, K * hidden] are those of every text in turn, from the
    first token that a block sees up to the last anchor, and `tokens` int64 [tokens] their
    positions; `context[i]` and `blocks[i]` are the half-open rows of text i in `tokens` and in
    `anchors`, and `firsts[i]` is the token that its context begins with.

    `ids` int64 [blocks, size] is what the drafter reads (anchor and masks), `labels` int64 and
    `counts` bool [blocks, size - 1] what it should say, and `before` int64 the text's tokens that
    stand one place before the labels. `soft` is the target's distribution at the same slots, where
    it is learnt from.
    """

    features: torch.Tensor
    tokens: torch.Tensor
    context: tuple[tuple[int, int], ...]
    blocks: tuple[tuple[int, int], ...]
    firsts: tuple[int, ...]
    anchors: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor
    counts: torch.Tensor
    before: torch.Tensor
    soft: Soft | None = None

    def to(self, device: str) -> Pack:
        if device == "cpu":
            return self
        soft = self.soft and self.soft.to(device)
        names = ("features", "tokens", "anchors", "ids", "labels", "counts", "before")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return replace(self, **moved, soft=soft)


def make_pack(
    picks: Sequence[Pick],
    seen: Sequence[Seen],
    size: int,
    mask: int,
    window: int | None = None,
) -> Pack:
    """Make a pack of blocks that see at most `window` tokens of context; `seen[i]` is the target's
    view of text i, of those tokens at least."""
    firsts = [first_seen(int(pick.anchors[0]), window) for pick in picks]
    context, blocks = [], []
    rows = drawn = 0
    for first, pick in zip(firsts, picks, strict=True):
        context.append((rows, rows := rows + pick.seen - first))
        blocks.append((drawn, drawn := drawn + len(pick.anchors)))
    anchors = torch.cat([pick.anchors for pick in picks])
    slot_labels, counts = block_labels(picks, size)
    ids = torch.full((drawn, size), mask)
    ids[:, 0] = torch.cat([pick.text.ids[pick.anchors] for pick in picks])
    return Pack(
        features=torch.cat(
            [
                view.between(first, pick.seen)
                for view, first, pick in zip(seen, firsts, picks, strict=True)
            ]
        ),
        tokens=torch.cat(
            [torch.arange(first, pick.seen) for first, pick in zip(firsts, picks, strict=True)]
        ),
        context=tuple(context),
        blocks=tuple(blocks),
        firsts=tuple(firsts),
        anchors=anchors,
        ids=ids,
        labels=slot_labels,
        counts=counts,
        before=torch.cat((ids[:, :1], slot_labels[:, :-1]), dim=1),
    )


def at_errors(picks: Sequence[Pick], pack: Pack, right: torch.Tensor) -> list[Pick]:
    """Return as many anchors of each text where the drafter's drafts go wrong. `pack` has the
    blocks of `picks`, and `right` bool [blocks, slots] marks the drafted tokens that are the
    text's.

    The first wrong token of a draft is where the next round of serving begins: at the token that
    the target says there. Several drafts may go wrong at the same place, or none; the other anchors
    are the drawn ones, evenly spread. None lies behind the last drawn one, so that a pack of them
    has no more context.
    """
    wrong = ~right.cpu() & pack.counts.cpu()
    places = pack.anchors.cpu() + 1 + wrong.int().argmax(1)
    moved = []
    for pick, (first, last) in zip(picks, pack.blocks, strict=True):
        places_wrong = torch.unique(places[first:last][wrong[first:last].any(1)])
        fits = torch.isin(places_wrong, valid_anchors(pick.text.said))
        errors = places_wrong[fits & (places_wrong <= pick.seen)]
        drawn = pick.anchors[~torch.isin(pick.anchors, errors)]
        missing = len(pick.anchors) - len(errors)
        kept = drawn[(2 * torch.arange(missing) + 1) * len(drawn) // max(1, 2 * missing)]
        moved.append(replace(pick, anchors=torch.cat((errors, kept)).sort().values))
    return moved
