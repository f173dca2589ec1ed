"""DFlash: one pass drafts a whole block from the target's own hidden states.

Chen et al., "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036), and its
second generation. The target's features of every committed token become keys and values of all
draft layers, once, at the target's own slots; a draft is then a single forward over the block
[anchor, mask, mask, …], whose slot k predicts the token k places behind the anchor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.core import DraftBatch, InvalidRequest, KVSpec, ModelError, Request
from paceline.drafters.base import ObservedRows, StatefulDrafter, TargetInfo
from paceline.drafters.block_draws import BlockDraws, CandidateWalk
from paceline.drafters.draw import DRAWS, Drawn, draft_batch
from paceline.drafters.kinds import (
    DRAFT_LENGTH,
    NETWORK_OPTIONS,
    BuildContext,
    DrafterSpec,
    Settings,
    one_of,
    register,
    whole,
)
from paceline.drafters.packing import Stretch, pack_blocks
from paceline.drafters.shipped import drafter_folder
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.dflash.batch import DFlashNetwork
from paceline.models.dflash.checkpoint import DFlashCheckpoint, Provenance, load_checkpoint
from paceline.models.dflash.config import check_mask
from paceline.models.dflash.networks import build_dflash, dflash_recipe, planned_bytes
from paceline.models.networks import DTYPES
from paceline.models.quantized import AUTO, INT8, UNQUANTIZED

ALL_CONTEXT = 0  # a window that has no end


@dataclass(slots=True)
class _Context:
    """Draft KV of one running request: in place for positions `first` to `end` - 1.

    `first` is not 0 after a prefix hit whose blocks lack this drafter's KV; `leading` tokens from
    the start have it in any case.
    """

    leading: int
    first: int
    end: int

    def add(self, start: int, count: int) -> None:
        if start > self.end:
            self.first, self.end = start, start
        self.end = max(self.end, start + count)
        if self.first == 0:
            self.leading = self.end


class DFlashDrafter(StatefulDrafter[_Context]):
    """Runs a DFlash checkpoint over the target's blocks.

    `window` bounds the context that a draft sees, in tokens, so that its cost stays flat however
    long the text is, and it is asked nothing that it was not trained on: see window_for(). `head`
    is "full", "cut" to the checkpoint's frequent tokens, or "auto": cut where the checkpoint has a
    list. `draw` is how a token is taken where the request samples: see `drafters.draw`.
    """

    network: DFlashNetwork  # from attach() on

    def __init__(
        self,
        name: str,
        checkpoint: DFlashCheckpoint,
        *,
        dtype: str = "bfloat16",
        backend: str = "auto",
        quantize: str | None = None,
        head: str = "auto",
        window: int | None = None,
        max_draft_len: int | None = None,
        draw: str = "argmax",
    ) -> None:
        """Raise InvalidRequest for a draft longer than the block, and for a head to cut where the
        checkpoint ships no list."""
        config, most = checkpoint.config, checkpoint.config.max_draft_len
        if max_draft_len is not None and max_draft_len > most:
            expected = f"at most {most}: it drafts blocks of {config.block_size}"
            raise InvalidRequest(f"drafter {name}, max_draft_len", max_draft_len, expected)
        if head == "cut" and checkpoint.head_ids is None:
            expected = "full: the checkpoint ships no list of frequent tokens"
            raise InvalidRequest(f"drafter {name}, head", head, expected)
        super().__init__(name, max_draft_len or most)
        self.version, self.feature_layers = checkpoint.version, config.target_layer_ids
        self.checkpoint, self.config = checkpoint, config
        self.window, why = window_for(window, checkpoint.provenance)
        sees = "all tokens" if self.window is None else f"the last {self.window} tokens"
        self.start_up_rows = [(f"window of {name}", f"{sees} of context: {why}")]
        self._head_ids = None if head == "full" else checkpoint.head_ids
        self._dtype, self._backend, self._quantize = dtype, backend, quantize
        shape, size = config.layers, DTYPES[dtype].itemsize
        self.kv = KVSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, size)
        recipe = UNQUANTIZED if quantize in (None, AUTO) else INT8  # AUTO: until there is a target
        self.weight_bytes = planned_bytes(config, DTYPES[dtype], self._head_ids, recipe)
        self._draws = BlockDraws(config, draw, self._head_ids)
        self._max_positions = shape.max_context

    def plan(self, target: TargetInfo) -> None:
        if target.network is not None:
            recipe = dflash_recipe(
                self.config, target.network, self._dtype, self._backend, self._quantize
            )
            dtype = DTYPES[self._dtype]
            self.weight_bytes = planned_bytes(self.config, dtype, self._head_ids, recipe)

    def attach(self, target: TargetInfo) -> None:
        """Build the network around the target's embedding and head, with KV for its blocks."""
        check_target(self.name, self.checkpoint, target)
        assert target.network is not None, "it shares the target's embedding and head"
        self._max_positions = min(
            self.config.layers.max_context, target.max_model_len + self.config.block_size
        )
        self.reach = self._max_positions - 1  # an anchor and one slot must lie within
        self.network = build_dflash(
            self.checkpoint,
            target.network,
            dtype=self._dtype,
            backend=self._backend,
            quantize=self._quantize,
            head_ids=self._head_ids,
            max_positions=self._max_positions,
        )
        self.network.allocate_kv(target.num_blocks)
        self._try_out(target)
        self.weight_bytes = self.network.weight_bytes
        if self.config.second is not None:
            selector = CandidateWalk(self.config.second, self.checkpoint.weights, self.network)
            self._draws.selector = selector
            self.weight_bytes += selector.weight_bytes

    @property
    def selector(self) -> CandidateWalk | None:
        """DFlash 2's selector of candidates; None for the first generation."""
        return self._draws.selector

    def _try_out(self, target: TargetInfo) -> None:
        """Draft once, in blocks that nobody owns yet. Raises ModelError where no number comes
        out: weights can be finite, and damaged all the same."""
        context, size = BLOCK_SIZE, self.max_draft_len + 1
        blocks = range(-(-(context + size) // BLOCK_SIZE))
        if len(blocks) > target.num_blocks or context + size > self._max_positions:
            return
        places = range(context)
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(context, self.config.feature_size, generator=generator)
        self.network.inject(features.to(self.network.device, self.network.dtype), places, places)
        masks = [self.config.mask_token_id] * size
        output = self.network.draft(pack_blocks([Stretch(blocks, context, masks)]))
        if not all(map(math.isfinite, output.confidence)):
            raise ModelError(f"drafter {self.name}: its drafts are NaN: the weights are damaged")
        self.network.allocate_kv(target.num_blocks)

    @torch.inference_mode()
    def rehearse(self, requests: int, length: int) -> None:
        masks = [self.config.mask_token_id] * min(length + 1, self._max_positions)
        used = -(-len(masks) // BLOCK_SIZE)
        blocks = [range(i * used, (i + 1) * used) for i in range(requests)]
        batch = pack_blocks([Stretch(of_request, 0, masks) for of_request in blocks])
        self.network.draft(batch, logits=self._draws.selector is not None)

    def start(self, request: Request, held: int) -> _Context:
        return _Context(held, 0, held)

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Inject the committed rows into the draft KV; their features are not kept. Rows that are
        not shown leave a hole."""
        features: list[torch.Tensor] = []
        positions: list[int] = []
        slots: list[int] = []
        for row in rows:
            count = min(row.count, self._max_positions - row.start)
            context = self.state(row.request)
            if context is None or count <= 0:
                continue
            assert row.features is not None, "a drafter with feature layers is shown features"
            context.add(row.start, count)
            at, blocks = range(row.start, row.start + count), row.request.blocks
            features.append(row.features if count == row.count else row.features[:count])
            positions += at
            slots += [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in at]
        if features:
            together = features[0] if len(features) == 1 else torch.cat(features)
            self.network.inject(together, positions, slots)

    def held_tokens(self, request: Request) -> int:
        context = self.state(request)
        return 0 if context is None else context.leading

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        return self.propose_trees(requests, lengths, [0] * len(requests))

    def propose_trees(
        self, requests: Sequence[Request], lengths: Sequence[int], nodes: Sequence[int]
    ) -> DraftBatch:
        drafts: list[list[Drawn]] = [[] for _ in requests]
        counts = list(map(self._slots, requests, lengths))
        asked = [index for index, count in enumerate(counts) if count]
        if not asked:
            return draft_batch(drafts)
        chosen, counts = [requests[i] for i in asked], [counts[i] for i in asked]
        wanted = [nodes[i] for i in asked]
        logits = any(wanted) or self._draws.need_logits(chosen)
        output = self.network.draft(self._blocks(chosen, counts), logits=logits)
        forced = [r.tokens[self._states[r.id, r.choice].end + 1 :] for r in chosen]
        drawn, trees = self._draws.draw(chosen, counts, forced, output, wanted)
        for index, draft in zip(asked, drawn, strict=True):
            drafts[index] = draft
        batch = draft_batch(drafts)
        if any(wanted):
            by_index = dict(zip(asked, trees, strict=True))
            batch.trees = [by_index.get(index) for index in range(len(requests))]
        return batch

    def _slots(self, request: Request, length: int) -> int:
        """Return the number of slots to predict, as far as this drafter's positions reach.

        The block begins at the first token without features, which is the last one but for those
        that a grammar forced after it; the selector draws slot by slot from the last token, and
        does not skip any.
        """
        context = self.state(request)
        if context is None:
            return 0
        forced = len(request.tokens) - 1 - context.end
        if forced < 0 or (forced and self._draws.selector is not None):
            return 0
        most = min(self.config.max_draft_len, self._max_positions - 1 - context.end)
        count = min(min(length, self.max_draft_len) + forced, most)
        return count if count > forced else 0

    def _blocks(self, requests: Sequence[Request], counts: Sequence[int]) -> ForwardBatch:
        """Return each request's anchor and masks, which see its context within the window."""
        mask, stretches = self.config.mask_token_id, []
        contexts = [self._states[request.id, request.choice] for request in requests]
        for request, context, count in zip(requests, contexts, counts, strict=True):
            ids = [request.tokens[context.end], *[mask] * count]
            stretches.append(Stretch(request.blocks, context.end, ids))
        batch = pack_blocks(stretches)
        window = self._max_positions if self.window is None else self.window
        batch.first = np.array([max(c.first, c.end - window) for c in contexts], dtype=np.int32)
        return batch


def window_for(asked: int | None, trained: Provenance) -> tuple[int | None, str]:
    """Return the most tokens of context that a draft sees, None for all, and the reason in words.

    `asked` is a number of tokens, ALL_CONTEXT, or None where nobody asked: then a drafter sees as
    much as it did in training, where its folder says how much that was. Drafts made of more context
    than that are accepted less.
    """
    if asked is not None:
        return asked or None, "as asked for"
    most = trained.context if trained.window is None else trained.window
    if most is None:
        return None, "the folder does not say how much it was trained on"
    return most, "what it was trained on; --draft-window changes it, 0 is all"


def check_target(name: str, checkpoint: DFlashCheckpoint, target: TargetInfo) -> None:
    """Raise ModelError where the drafter was not made for this target, naming what differs."""
    config = checkpoint.config
    for field, ours, theirs in (
        ("hidden_size", config.layers.hidden_size, target.hidden_size),
        ("vocab_size", config.layers.vocab_size, target.vocab_size),
        ("num_target_layers", config.num_target_layers, target.num_layers),
    ):
        if ours is not None and ours != theirs:
            raise ModelError(
                f"drafter {name}: {field} is {ours}; expected {theirs}, that of {target.name}"
            )
    past = [layer for layer in config.target_layer_ids if layer >= target.num_layers - 1]
    if past:
        raise ModelError(
            f"drafter {name}: target_layer_ids has {past[0]}; expected layers 0 to "
            f"{target.num_layers - 2} of {target.name} (engines differ in whether its last layer's "
            "output is taken before or after the final norm)"
        )
    special = [("end of text", token) for token in sorted(target.eos_ids)]
    pad = getattr(target.tokenizer, "pad_token_id", None)
    special += [] if pad is None else [("padding token", pad)]
    check_mask(config, target.vocab_size, tuple(special), f"drafter {name}")


@register("dflash", value="a drafter (a folder, hub id or name)")
def _build(spec: DrafterSpec, context: BuildContext) -> DFlashDrafter:
    settings = dflash_defaults(context) | spec.settings(DFLASH_OPTIONS)
    return DFlashDrafter(spec.name, load_checkpoint(drafter_folder(str(spec.value))), **settings)


def dflash_defaults(context: BuildContext) -> Settings:
    """Return the settings of a drafter that a spec leaves open."""
    settings = context.network_settings | {"window": context.window}
    del settings["device"]  # it runs where its target does, whose head it shares
    return settings


DFLASH_OPTIONS = DRAFT_LENGTH | {
    "window": whole(ALL_CONTEXT, 2**31 - 1),
    "head": one_of("auto", "full", "cut"),
    "draw": one_of(*DRAWS),
    **{name: NETWORK_OPTIONS[name] for name in ("dtype", "backend", "quantize")},
}
