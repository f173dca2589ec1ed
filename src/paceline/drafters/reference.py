"""A served DFlash drafter beside its own training form: what it drafted, what it should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core import DraftBatch, Request
from paceline.drafters.dflash import DFlashDrafter
from paceline.models.batch import ForwardBatch, Network
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.module import DFlashModule, draft_logits
from paceline.models.networks import sequence_features

LARGEST_SHIFT = 1  # of slots, among the readings that are compared
ANCHORS = 48  # of each text, at most, for judging a reading of the checkpoint


@dataclass(slots=True)
class RecordedDraft:
    """Holds what one request was drafted from, and the logits of its mask slots."""

    request: str
    tokens: list[int]
    first: int  # first position of context that the draft saw
    logits: torch.Tensor


class Recorder:
    """Stands in for a drafter and keeps the logits behind each of its drafts."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter
        self.drafts: list[RecordedDraft] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        seen: list[tuple[ForwardBatch, torch.Tensor]] = []
        network: Any = self._drafter.network  # whose method is replaced for this draft
        draft = self._drafter.network.draft

        def recorded(batch: ForwardBatch, *, logits: bool = False) -> BlockOutput:
            output = draft(batch, logits=True)
            assert output.logits is not None
            seen.append((batch, output.logits.to("cpu", copy=True)))
            return output

        network.draft = recorded
        try:
            proposed = self._drafter.propose(requests, lengths)
        finally:
            network.draft = draft
        drafted = [r for r, count in zip(requests, proposed.lengths, strict=True) if count]
        for batch, logits in seen:
            assert batch.first is not None
            counts = (np.diff(batch.seq_starts) - 1).tolist()
            rows = zip(drafted, batch.first.tolist(), torch.split(logits, counts), strict=False)
            self.drafts += [RecordedDraft(r.id, list(r.tokens), *row) for r, *row in rows]
        return proposed


class Trained:
    """The training form with a checkpoint's weights as they are served, over the target's own
    embedding and head, and the features of some finished texts; on the CPU wherever those are.
    `window` bounds the context of a block in tokens, as DFlashDrafter's does."""

    def __init__(
        self,
        network: Network,
        drafter: DFlashDrafter,
        texts: dict[str, list[int]],
        window: int | None = None,
    ) -> None:
        self.drafter, self.config, self._window = drafter, drafter.config, window
        weights = drafter.checkpoint.weights
        dtype = drafter.network.dtype
        self._state = {name: weights[name].to(dtype).float() for name in weights}
        everything = torch.arange(network.vocab_size)
        self._embedding = network.embedding_rows(everything).float().cpu()
        self.head_ids = drafter.network.head_ids
        ids = everything if self.head_ids is None else self.head_ids
        self._head = network.head_rows(ids).float().cpu()
        self.texts = texts
        self._module = lru_cache(maxsize=1)(self._load)  # one at a time: they may be large
        near = {layer + by for layer in self.config.target_layer_ids for by in (-1, 0, 1)}
        self.layers = sorted(near & set(range(network.num_layers)))
        self._features = {
            name: sequence_features(network, tokens, self.layers).float().cpu()
            for name, tokens in texts.items()
        }
        self._hidden = network.hidden_size

    def features(self, name: str, layer_ids: Sequence[int]) -> torch.Tensor:
        """Of a text, from these layers: [tokens, len(layer_ids) * hidden]."""
        whole = self._features[name].view(-1, len(self.layers), self._hidden)
        return whole[:, [self.layers.index(layer) for layer in layer_ids]].flatten(1)

    @torch.inference_mode()
    def hidden(
        self,
        config: DFlashConfig,
        name: str,
        anchors: torch.Tensor,
        count: int,
        first: int = 0,
        *,
        own_mask: bool = True,
    ) -> torch.Tensor:
        """Of the slots of each anchor's block, its own and `count` masks: [anchors, 1 + count,
        hidden]. Without `own_mask` the masks are the target's row, whatever the checkpoint has."""
        last = int(anchors.max())
        if self._window is not None and last - self._window > first:
            if len(anchors) > 1:  # each sees a context of its own
                blocks = (
                    self.hidden(config, name, anchor, count, first, own_mask=own_mask)
                    for anchor in torch.split(anchors, 1)
                )
                return torch.cat(list(blocks))
            first = last - self._window
        module = self._module(config)
        tokens = torch.tensor(self.texts[name])
        masks = torch.full((len(anchors), count), config.mask_token_id)
        embedded = self._embedding[torch.cat((tokens[anchors][:, None], masks), dim=1)]
        mask = self.drafter.checkpoint.mask_embedding if own_mask else None
        if mask is not None:
            embedded[:, 1:] = mask
        context = self.features(name, config.target_layer_ids)[first:last]
        hidden: torch.Tensor = module(context, embedded * config.embedding_scale, anchors, first)
        return hidden

    def head_logits(self, config: DFlashConfig, hidden: torch.Tensor) -> torch.Tensor:
        """Of hidden states of slots: [..., head]."""
        return draft_logits(config, hidden, self._head)

    def logits(
        self, config: DFlashConfig, name: str, anchors: torch.Tensor, count: int, first: int = 0
    ) -> torch.Tensor:
        """Of `count` mask slots behind each anchor of a text: [anchors, count, head]."""
        return self.head_logits(config, self.hidden(config, name, anchors, count, first)[:, 1:])

    def _load(self, config: DFlashConfig) -> DFlashModule:
        module = DFlashModule(config).eval()
        module.load_state_dict(self._state)
        return module

    def accepted(
        self, config: DFlashConfig, starts: dict[str, int], shift: int
    ) -> list[NDArray[np.float64]]:
        """Return how many tokens stand of drafts from anchors all over the answers, which begin at
        `starts`, had they been judged by the text itself: an array for each text, with the same
        anchors whatever the reading. `shift` 1 reads slot k as the token k + 1 places on."""
        size, accepted = config.max_draft_len, []
        for name, tokens in self.texts.items():
            last = len(tokens) - size - LARGEST_SHIFT
            if last <= starts[name]:
                continue
            places = torch.linspace(starts[name], last - 1, ANCHORS).long().tolist()
            spread = torch.tensor(sorted(set(places)))
            guesses = self.logits(config, name, spread, size).argmax(-1)
            if self.head_ids is not None:
                guesses = self.head_ids[guesses]
            slots = spread[:, None] + torch.arange(1, size + 1) + shift
            right = (guesses == torch.tensor(tokens)[slots]).int().cumprod(1)
            accepted.append(right.sum(1).double().numpy())
        return accepted
