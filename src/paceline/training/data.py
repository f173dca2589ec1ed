"""Training texts and their order, decided by counters alone: a resumed run takes the texts that an
uninterrupted run would have taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from paceline.core import InvalidRequest
from paceline.dataset.loops import loop_start
from paceline.dataset.training_set import Manifest, read_rows
from paceline.training.anchors import Text, draw_anchors, random_for, valid_anchors
from paceline.training.packs import Pick

SHUFFLE = (1 << 32) - 1  # stands for the order where draws of a text have its number


def read_texts(folders: Sequence[Path], split: str, max_tokens: int, first: int = 0) -> list[Text]:
    """Read the texts of a split, numbered from `first` on and cut to `max_tokens`. Texts without an
    anchor are left out, and so are the loops of an answer. Raises InvalidRequest (field `sets`)
    where none is left."""
    texts: list[Text] = []
    for folder in folders:
        for row in read_rows(folder, split):
            ids = torch.tensor(row.ids[:max_tokens])
            said = torch.zeros(len(ids), dtype=torch.bool)
            for start, end in row.spans:
                looping = loop_start(row.ids[start:end])
                said[start : end if looping is None else start + looping] = True
            if len(valid_anchors(said)):
                end = int(said.nonzero()[-1]) + 1  # nobody looks behind it
                texts.append(Text(first + len(texts), ids[:end], said[:end]))
    if not texts:
        names = ", ".join(str(folder) for folder in folders)
        expected = f"a set whose split {split!r} has answers of two tokens or more"
        raise InvalidRequest("sets", names, expected)
    return texts


def without_token(texts: Sequence[Text], token: int) -> list[Text]:
    """Return the texts without `token`."""
    return [text for text in texts if not bool((text.ids == token).any())]


def token_counts(texts: Sequence[Text], vocabulary: int) -> torch.Tensor:
    """Return how often the target said each token: int64 [vocabulary]."""
    return sum(
        (torch.bincount(text.ids[text.said], minlength=vocabulary) for text in texts),
        torch.zeros(vocabulary, dtype=torch.int64),
    )


def frequent_tokens(counts: torch.Tensor, most: int) -> torch.Tensor:
    """Return at most `most` tokens that were said most often, ascending int64 [n]; ties go to the
    lower id."""
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[: min(most, int((counts > 0).sum()))].sort().values


def check_target(manifests: Mapping[str, Manifest], identity: Mapping[str, str]) -> None:
    """Raise InvalidRequest where a set was made with other weights, tokens or template."""
    for folder, manifest in manifests.items():
        for key, meaning in (
            ("tokenizer_sha256", "tokenizer"),
            ("template", "chat template"),
            ("weights_sha256", "weights"),
        ):
            digest, own_digest = manifest.target.get(key), identity[key]
            if digest is not None and digest != own_digest:
                expected = (
                    f"a set made with this model's {meaning} ({key} {own_digest[:12]}); this one "
                    f"was made with {manifest.target.get('name')} ({digest[:12]})"
                )
                raise InvalidRequest("sets", folder, expected)


class Order:
    """The texts and anchors of each step: all texts once per epoch, shuffled by the seed."""

    def __init__(self, texts: Sequence[Text], per_step: int, anchors: int, seed: int) -> None:
        self._texts, self._per_step = texts, per_step
        self._anchors, self._seed = anchors, seed
        self._shuffled: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def step(self, step: int) -> list[Pick]:
        return [self._pick(step * self._per_step + turn) for turn in range(self._per_step)]

    def _pick(self, turn: int) -> Pick:
        epoch, place = divmod(turn, len(self._texts))
        if self._shuffled[0] != epoch:
            random = random_for(self._seed, epoch, SHUFFLE)
            self._shuffled = epoch, random.permutation(len(self._texts))
        text = self._texts[self._shuffled[1][place]]
        return Pick(text, draw_anchors(text, self._anchors, self._seed, epoch))
