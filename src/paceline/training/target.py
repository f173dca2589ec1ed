"""The frozen target: what a drafter sees of it and what it would say, kept within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.models.batch import BLOCK_SIZE, Network
from paceline.models.config import ModelConfig
from paceline.models.networks import sequence_outputs
from paceline.training.anchors import Text


@dataclass(frozen=True, slots=True)
class Seen:
    """What the target made of one text: `features` [tokens, layers * hidden] in its own dtype, and,
    where they are learnt from, its most likely next tokens behind each token, int32 [tokens, k],
    with their probabilities, float16."""

    features: torch.Tensor
    likely: torch.Tensor | None = None
    probabilities: torch.Tensor | None = None

    @property
    def bytes(self) -> int:
        parts = (self.features, self.likely, self.probabilities)
        return sum(part.nbytes for part in parts if part is not None)

    def behind(self, anchors: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Likely tokens and their probabilities at slots 1 to `slots` behind each anchor,
        [anchors, slots, k] each."""
        assert self.likely is not None and self.probabilities is not None
        # What the token at a place should be, the target says one place before.
        before = (anchors[:, None] + torch.arange(slots)).clamp(max=len(self.likely) - 1)
        return self.likely[before].long(), self.probabilities[before].float()


class Target:
    """Reads training texts with the frozen target. `soft_tokens` 0 keeps features alone.

    The first texts asked for are kept until `budget` bytes are full; the others are read each time.
    `computed_tokens` counts what was read. `embedding` and `head`, [vocabulary, hidden], are its
    own; `together` says that all processes must read a text whenever one does.
    """

    embedding: torch.Tensor
    head: torch.Tensor
    together = False

    def __init__(
        self, shape: ModelConfig, layers: Sequence[int], budget: int, soft_tokens: int = 0
    ) -> None:
        self.shape = shape
        self._layers, self._soft = tuple(layers), soft_tokens
        self._left, self._kept = budget, dict[int, Seen]()
        self._preferred: dict[int, int] = {}
        self.computed_tokens = 0

    def prefer(self, texts: Sequence[Text]) -> None:
        """These are kept before any other text is."""
        self._preferred = {text.number: len(text) for text in texts}

    def features(self, text: Text) -> torch.Tensor:
        return self.read(text).features

    def read(self, text: Text) -> Seen:
        kept = self._kept.get(text.number)
        if kept is not None:
            return kept
        seen = self._compute(text)
        self.computed_tokens += len(text)
        waiting = self._preferred.pop(text.number, 0)
        each = seen.bytes / len(text)
        reserved = 0.0 if waiting else each * sum(self._preferred.values())
        if seen.bytes <= self._left - reserved:
            self._left -= seen.bytes
            self._kept[text.number] = seen
        return seen

    def _compute(self, text: Text) -> Seen:
        raise NotImplementedError


class LocalTarget(Target):
    """A target whose network is in this process. Nobody else may use the network's KV."""

    def __init__(
        self,
        network: Network,
        shape: ModelConfig,
        layers: Sequence[int],
        budget: int,
        soft_tokens: int = 0,
    ) -> None:
        super().__init__(shape, layers, budget, soft_tokens)
        self._network, self._room = network, 0
        everything = torch.arange(network.vocab_size)
        self.embedding, self.head = (
            network.embedding_rows(everything),
            network.head_rows(everything),
        )

    def _compute(self, text: Text) -> Seen:
        self._make_room(len(text))
        features, soft = [], []
        ids = text.ids.tolist()
        for _, output in sequence_outputs(self._network, ids, self._layers, bool(self._soft)):
            assert output.features is not None
            features.append(output.features.cpu())
            if self._soft:
                soft.append(likely_tokens(output.logits, self._soft))
        if not self._soft:
            return Seen(torch.cat(features))
        likely, probabilities = zip(*soft, strict=True)
        return Seen(torch.cat(features), torch.cat(likely), torch.cat(probabilities))

    def _make_room(self, tokens: int) -> None:
        blocks = -(-tokens // BLOCK_SIZE)
        if blocks > self._room:
            self._network.allocate_kv(blocks)
            self._room = blocks


def likely_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` most likely tokens of each row, int32, and their probabilities, float16."""
    logits = logits.float()
    top = logits.topk(count, dim=-1)
    whole = logits.logsumexp(-1, keepdim=True)
    return top.indices.int().cpu(), (top.values - whole).exp().half().cpu()
