"""Packs: texts with the same start, side by side in one sequence that holds the start once.

An application's texts all begin with its system prompt, which is often longer than the rest. A
token sees the shared start and its own text, so the outputs are those of the texts alone, and the
gradient of the start is that of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from paceline.training.packs import Text

ALIKE = 32  # tokens that texts of a pack begin with in common, at least


@dataclass(frozen=True, slots=True)
class TextPack:
    """Several texts as one sequence of n tokens.

    `ids` and `positions` int64 [n]; `sees` bool [n, n], which tokens each one sees; `rows` int64
    [m], the places whose output is the next token `labels` int64 [m]; `texts` are in the order of
    their labels.
    """

    texts: tuple[Text, ...]
    ids: torch.Tensor
    positions: torch.Tensor
    sees: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor


def labelled(text: Text) -> torch.Tensor:
    """Return the places int64 [m], ascending, of a text's tokens that are learnt."""
    places = text.said.nonzero()[:, 0]
    return places[places > 0]


def pack(texts: Sequence[Text]) -> TextPack:
    """Put texts side by side behind the start that they share."""
    shared = _shared(texts)
    ids, positions, owners = [texts[0].ids[:shared]], [torch.arange(shared)], [-1] * shared
    rows, labels = [], []
    offset = shared
    for number, text in enumerate(texts):
        own = len(text) - shared
        ids.append(text.ids[shared:])
        positions.append(torch.arange(shared, len(text)))
        owners += [number] * own
        places = labelled(text)
        before = places - 1
        rows.append(torch.where(before < shared, before, before - shared + offset))
        labels.append(text.ids[places])
        offset += own
    at, owner = torch.cat(positions), torch.tensor(owners)
    mine = (owner[:, None] == owner) | (owner == -1)
    return TextPack(
        tuple(texts),
        torch.cat(ids),
        at,
        mine & (at <= at[:, None]),
        torch.cat(rows),
        torch.cat(labels),
    )


def packs(texts: Sequence[Text], tokens: int) -> Iterator[TextPack]:
    """Yield packs of texts that begin alike, of at most `tokens` tokens; a longer text is alone."""
    alike: dict[tuple[int, ...], list[Text]] = {}
    for text in texts:
        alike.setdefault(tuple(text.ids[:ALIKE].tolist()), []).append(text)
    for group in alike.values():
        taken: list[Text] = []
        for text in group:
            more = [*taken, text]
            shared = _shared(more)
            if taken and shared + sum(len(each) - shared for each in more) > tokens:
                yield pack(taken)
                more = [text]
            taken = more
        yield pack(taken)


def _shared(texts: Sequence[Text]) -> int:
    """Return how many tokens all texts begin with; each keeps one of its own."""
    least = min(map(len, texts)) - 1
    first = texts[0].ids[:least]
    for text in texts[1:]:
        differs = (text.ids[: len(first)] != first).nonzero()
        if len(differs):
            first = first[: int(differs[0])]
    return len(first)
