"""The larger model's distribution along the texts, computed once for each."""

from __future__ import annotations

from typing import Any

import torch

from paceline.distil.packs import TextPack, labelled, pack
from paceline.distil.student import pack_logits
from paceline.models.any_target import AnyTarget
from paceline.training.losses import Soft
from paceline.training.packs import Text
from paceline.training.target import likely_tokens
from paceline.training.transformers_target import load_causal_model


class Teacher:
    """The larger model as transformers loads it, frozen. What it says of a text is kept: `count`
    likely tokens, of the `vocabulary` that the student has, at each place that is learnt; 6 bytes
    each."""

    def __init__(
        self, found: AnyTarget, count: int, vocabulary: int, dtype: torch.dtype, device: str
    ) -> None:
        self._module: Any = load_causal_model(found, dtype, device)
        self._count, self._vocabulary, self._device = count, vocabulary, device
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def soft(self, texts: tuple[Text, ...]) -> Soft:
        """Return the distribution along texts that begin alike, [1, m, count], in their order."""
        missing = [text for text in texts if text.number not in self._kept]
        if missing:
            self._read(pack(missing))
        kept = [self._kept[text.number] for text in texts]
        tokens = torch.cat([ids for ids, _ in kept]).long()
        probabilities = torch.cat([shares for _, shares in kept]).float()
        return Soft(tokens[None].to(self._device), probabilities[None].to(self._device))

    @torch.no_grad()
    def _read(self, part: TextPack) -> None:
        logits = pack_logits(self._module, part, self._device)[:, : self._vocabulary]
        tokens, shares = likely_tokens(logits, self._count)
        counts = [len(labelled(text)) for text in part.texts]
        pieces = zip(torch.split(tokens, counts), torch.split(shares, counts), strict=True)
        for text, piece in zip(part.texts, pieces, strict=True):
            self._kept[text.number] = piece
