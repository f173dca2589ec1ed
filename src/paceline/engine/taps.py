"""The target's layers that drafters look at, and which columns of the features are whose."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import torch


class Taps:
    """The layers that some drafters look at, each drafter's side by side; drafters that look at the
    same ones share their columns. A drafter that looks at none has ()."""

    def __init__(self, feature_layers: Iterable[tuple[int, ...]]) -> None:
        tapped = list(dict.fromkeys(layers for layers in feature_layers if layers))
        self.layers = tuple(layer for layers in tapped for layer in layers)
        ends = list(accumulate(map(len, tapped)))
        self._columns = {
            layers: slice(end - len(layers), end) for layers, end in zip(tapped, ends, strict=True)
        }

    def columns_of(
        self, layers: tuple[int, ...], features: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the columns of a drafter that looks at `layers`, of `features` [rows, all layers *
        hidden]; None where there are none."""
        if features is None or not layers:
            return None
        if len(self._columns) == 1:
            return features
        width = features.shape[1] // len(self.layers)
        own = self._columns[layers]
        return features[:, own.start * width : own.stop * width]
