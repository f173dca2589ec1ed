"""The larger model's distribution along the texts, computed once for each."""

from __future__ import annotations

import torch

from paceline.distil.bound import Bounds
from paceline.distil.packs import labelled
from paceline.models.any_target import AnyTarget
from paceline.models.networks import build_network
from paceline.training.packs import Text
from paceline.training.seen import Soft
from paceline.training.target import LocalTarget

LAYERS = (0,)  # a target shows features too, which are thrown away: the fewest


class Teacher:
    """The larger model as our engine serves it, in bfloat16 or quantised. What it says of a text is
    kept: `count` likely tokens, of the `vocabulary` that the student has, at each place that is
    learnt; 6 bytes each. Of answers that a grammar bound it is what `bounds` leave of it; where
    nothing is left of the likely tokens, the answer's own token is certain.

    The constructor raises ModelError for weights that cannot be read, and InvalidRequest for a
    `quantize` that the device does not have.
    """

    def __init__(
        self,
        found: AnyTarget,
        count: int,
        vocabulary: int,
        device: str,
        quantize: str | None,
        bounds: Bounds,
    ) -> None:
        assert found.loaded is not None, "checked before"
        network, _ = build_network(found.loaded, device=device, quantize=quantize)
        on_cuda = device == "cuda"
        self._target = LocalTarget(network, found.shape, LAYERS, 0, count, on_cuda)
        self._vocabulary, self._device, self._bounds = vocabulary, device, bounds
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def soft(self, texts: tuple[Text, ...]) -> Soft:
        """Return the distribution along texts, [1, m, count], in their order."""
        self.read(texts)
        kept = [self._kept[text.number] for text in texts]
        tokens = torch.cat([ids for ids, _ in kept]).long()
        tokens = tokens.masked_fill(tokens >= self._vocabulary, -1)
        probabilities = torch.cat([shares for _, shares in kept]).float()
        return Soft(tokens[None].to(self._device), probabilities[None].to(self._device))

    def read(self, texts: tuple[Text, ...]) -> None:
        """Compute the distribution along those texts that were not read yet, together."""
        missing = [text for text in texts if text.number not in self._kept]
        for text, seen in zip(missing, self._target.read_all(missing), strict=True):
            assert seen.likely is not None and seen.probabilities is not None
            places = labelled(text)
            tokens, shares = seen.likely[places - 1], seen.probabilities[places - 1]
            shares = self._bounds.bind(text, places, tokens, shares)
            nothing = shares.sum(-1) == 0
            tokens[nothing, 0], shares[nothing, 0] = text.ids[places[nothing]].int(), 1.0
            self._kept[text.number] = tokens, shares
