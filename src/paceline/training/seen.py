"""The target's view of a training text."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Soft:
    """The target's most likely tokens at each slot: `rows` int64 [blocks, slots, k] of the head
    that is trained (-1 where that head lacks the token) and their probabilities, float. For
    on_policy, `temperatures` float [blocks] are those of the texts (`packs.Text`)."""

    rows: torch.Tensor
    probabilities: torch.Tensor
    temperatures: torch.Tensor | None = None

    def part(self, blocks: slice) -> Soft:
        """Return the distribution of some of the blocks."""
        temperatures = None if self.temperatures is None else self.temperatures[blocks]
        return Soft(self.rows[blocks], self.probabilities[blocks], temperatures)

    def to(self, device: str) -> Soft:
        temperatures = None if self.temperatures is None else self.temperatures.to(device)
        return Soft(self.rows.to(device), self.probabilities.to(device), temperatures)


@dataclass(frozen=True, slots=True)
class Seen:
    """The target's view of one text from token `first` on: `features` [tokens, layers * hidden] in
    its own dtype, and, where they are learnt, its most likely next tokens behind each token, int32
    [tokens, k], with their probabilities, float16."""

    features: torch.Tensor
    likely: torch.Tensor | None = None
    probabilities: torch.Tensor | None = None
    first: int = 0

    @property
    def bytes(self) -> int:
        parts = (self.features, self.likely, self.probabilities)
        return sum(part.nbytes for part in parts if part is not None)

    def since(self, first: int) -> Seen:
        """Return what was seen from token `first` on, without holding the memory of the rest."""
        if first <= self.first:
            return self

        def cut(part: torch.Tensor | None) -> torch.Tensor | None:
            return None if part is None else part[first - self.first :].clone()

        features = self.features[first - self.first :].clone()
        return Seen(features, cut(self.likely), cut(self.probabilities), first)

    def between(self, start: int, end: int) -> torch.Tensor:
        """Return the features of tokens `start` to `end`."""
        return self.features[start - self.first : end - self.first]

    def after(self, start: Seen, first: int) -> Seen:
        """Return what was seen from token `first` on of a text that begins as that of `start`, and
        whose rest this is."""
        rows = slice(first - start.first, self.first - start.first)

        def joined(before: torch.Tensor | None, rest: torch.Tensor | None) -> torch.Tensor | None:
            return None if before is None or rest is None else torch.cat([before[rows], rest])

        features = torch.cat([start.features[rows], self.features])
        likely = joined(start.likely, self.likely)
        return Seen(features, likely, joined(start.probabilities, self.probabilities), first)

    def behind(self, anchors: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return likely tokens and their probabilities at slots 1 to `slots` behind each anchor,
        [anchors, slots, k] each."""
        assert self.likely is not None and self.probabilities is not None
        # What the token at a place should be, the target says one place before.
        before = anchors[:, None] - self.first + torch.arange(slots)
        before = before.clamp(max=len(self.likely) - 1)
        return self.likely[before].long(), self.probabilities[before].float()
