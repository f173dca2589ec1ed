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
from typing import Any

import numpy as np
import torch

from paceline.core import DraftBatch, InvalidRequest, KVSpec, ModelError, Request
from paceline.drafters.base import (
    BuildContext,
    DrafterSpec,
    ObservedRows,
    TargetInfo,
    register,
)
from paceline.drafters.draw import DRAWS, Drawn, draw_token
from paceline.drafters.selector import CandidateSelector
from paceline.drafters.spec import draft_len, one_of, read_options, whole
from paceline.models.batch import BLOCK_SIZE, ForwardBatch
from paceline.models.dflash.batch import BlockOutput, DFlashNetwork
from paceline.models.dflash.checkpoint import DFlashCheckpoint, load_checkpoint
from paceline.models.dflash.config import check_mask
from paceline.models.dflash.networks import build_dflash, planned_bytes
from paceline.models.networks import DTYPES
from paceline.models.recipe import INT8, QUANTIZE, UNQUANTIZED

HEADS = ("auto", "full", "cut")


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


class DFlashDrafter:
    """Runs a DFlash checkpoint over the target's blocks.

    `window` bounds the context that a draft sees, in tokens, so that its cost stays flat however
    long the text is; None sees all. `head` is "full", "cut" to the checkpoint's frequent tokens, or
    "auto": cut where the checkpoint has a list. `draw` is how a token is taken where the request
    samples: see `drafters.draw`.
    """

    lookback = 0
    parallel = True

    def __init__(
        self,
        name: str,
        checkpoint: DFlashCheckpoint,
        *,
        dtype: str = "bfloat16",
        backend: str = "auto",
        quantize: str = "none",
        head: str = "auto",
        window: int | None = None,
        max_draft_len: int | None = None,
        draw: str = "argmax",
    ) -> None:
        """Raises InvalidRequest for a draft longer than the block, and for a head to cut where the
        checkpoint ships no list."""
        config = checkpoint.config
        most = config.max_draft_len
        if max_draft_len is not None and max_draft_len > most:
            expected = f"at most {most}: it drafts blocks of {config.block_size}"
            raise InvalidRequest(f"drafter {name}, max_draft_len", max_draft_len, expected)
        if head == "cut" and checkpoint.head_ids is None:
            expected = "full: the checkpoint ships no list of frequent tokens"
            raise InvalidRequest(f"drafter {name}, head", head, expected)
        self.name, self.version = name, checkpoint.version
        self.max_draft_len = max_draft_len or most
        self.checkpoint, self.config = checkpoint, config
        self.feature_layers = config.target_layer_ids
        self._head_ids = None if head == "full" else checkpoint.head_ids
        self._dtype, self._backend, self.window, self._draw = dtype, backend, window, draw
        self._quantize = None if quantize == "none" else quantize
        shape = config.layers
        itemsize = DTYPES[dtype].itemsize
        self.kv: KVSpec | None = KVSpec(
            shape.num_layers, shape.num_kv_heads, shape.head_dim, itemsize
        )
        recipe = UNQUANTIZED if self._quantize is None else INT8
        self.weight_bytes = planned_bytes(config, DTYPES[dtype], self._head_ids, recipe)
        self.network: DFlashNetwork | None = None
        self._selector: CandidateSelector | None = None
        self._max_positions = shape.max_context
        self.reach: int | None = None
        self._contexts: dict[tuple[str, int], _Context] = {}

    def attach(self, target: TargetInfo) -> None:
        """Builds the network around the target's embedding and head, with KV for its blocks."""
        check_target(self.name, self.checkpoint, target)
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
            self._selector = CandidateSelector(
                self.config.second, self.checkpoint.weights, self.network
            )
            self.weight_bytes += self._selector.weight_bytes

    def _try_out(self, target: TargetInfo) -> None:
        """Drafts once, in blocks that nobody owns yet. Raises ModelError where no number comes
        out: weights can be finite, and damaged all the same."""
        assert self.network is not None
        context, size = BLOCK_SIZE, self.max_draft_len + 1
        positions = np.arange(context + size, dtype=np.int32)
        blocks = -(-len(positions) // BLOCK_SIZE)
        if blocks > target.num_blocks or len(positions) > self._max_positions:
            return
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(context, self.config.feature_size, generator=generator)
        device, dtype = self.network.device, self.network.dtype
        self.network.inject(features.to(device, dtype), positions[:context], positions[:context])
        output = self.network.draft(
            ForwardBatch(
                ids=np.full(size, self.config.mask_token_id, dtype=np.int32),
                positions=positions[context:],
                seq_starts=np.array([0, size], dtype=np.int32),
                block_tables=np.arange(blocks, dtype=np.int32)[None],
                logit_rows=np.arange(1, size, dtype=np.int32),
            )
        )
        if not bool(torch.isfinite(output.confidence).all()):
            raise ModelError(f"drafter {self.name}: its drafts are NaN: the weights are damaged")
        self.network.allocate_kv(target.num_blocks)

    @torch.inference_mode()
    def rehearse(self, requests: int, length: int) -> None:
        assert self.network is not None
        size = min(length + 1, self._max_positions)
        blocks = -(-size // BLOCK_SIZE)
        rows = np.arange(requests * size, dtype=np.int32)
        self.network.draft(
            ForwardBatch(
                ids=np.full(len(rows), self.config.mask_token_id, dtype=np.int32),
                positions=rows % size,
                seq_starts=np.arange(requests + 1, dtype=np.int32) * np.int32(size),
                block_tables=np.arange(requests * blocks, dtype=np.int32).reshape(requests, -1),
                logit_rows=np.flatnonzero(rows % size).astype(np.int32),
            ),
            logits=self._selector is not None,
        )

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        for request, leading in zip(requests, held, strict=True):
            self._contexts[request.id, request.choice] = _Context(leading, 0, leading)

    @torch.inference_mode()
    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Injects what was committed into the draft KV; the features are not kept."""
        assert self.network is not None
        features: list[torch.Tensor] = []
        positions: list[int] = []
        slots: list[int] = []
        for row in rows:
            count = min(row.count, self._max_positions - row.start)
            context = self._contexts.get((row.request.id, row.request.choice))
            if context is None or count <= 0:
                continue
            context.add(row.start, count)
            at, blocks = range(row.start, row.start + count), row.request.blocks
            features.append(row.features[:count])
            positions += at
            slots += [blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in at]
        if features:
            together = features[0] if len(features) == 1 else torch.cat(features)
            where = np.array([positions, slots], dtype=np.int32)
            self.network.inject(together, where[0], where[1])

    def held_tokens(self, request: Request) -> int:
        context = self._contexts.get((request.id, request.choice))
        return 0 if context is None else context.leading

    def release(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._contexts.pop((request.id, request.choice), None)

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        assert self.network is not None
        pairs = zip(requests, lengths, strict=True)
        slots = [self._slots(request, length) for request, length in pairs]
        drafts: list[list[Drawn]] = [[] for _ in requests]
        asked = [index for index, count in enumerate(slots) if count]
        if asked:
            chosen = [requests[index] for index in asked]
            counts = [slots[index] for index in asked]
            sampled = any(not request.params.greedy for request in chosen)
            logits = self._selector is not None or (sampled and self._draw != "argmax")
            output = self.network.draft(self._blocks(chosen, counts), logits=logits)
            for index, drawn in zip(asked, self._draw_all(chosen, counts, output), strict=True):
                drafts[index] = self._past_forced(requests[index], drawn)
        return DraftBatch(
            tokens=[[drawn.token for drawn in draft] for draft in drafts],
            q=[_q_rows(draft) for draft in drafts],
            confidence=[[drawn.confidence for drawn in draft] for draft in drafts],
        )

    # -- inside -----------------------------------------------------------------------------------

    def _slots(self, request: Request, length: int) -> int:
        """Slots to predict, as far as this drafter's positions reach. The block begins at the first
        token without features, which is the last one but for those that a grammar forced after it;
        the selector draws slot by slot from the last token, and does not skip any."""
        context = self._contexts.get((request.id, request.choice))
        if context is None:
            return 0
        forced = len(request.tokens) - 1 - context.end
        if forced < 0 or (forced and self._selector is not None):
            return 0
        most = min(self.config.max_draft_len, self._max_positions - 1 - context.end)
        count = min(min(length, self.max_draft_len) + forced, most)
        return count if count > forced else 0

    def _past_forced(self, request: Request, drawn: list[Drawn]) -> list[Drawn]:
        """What a block says after the tokens that were forced, if it foresaw those: otherwise it
        goes on from a text that is not there."""
        forced = len(request.tokens) - 1 - self._anchor(request)
        known = request.tokens[len(request.tokens) - forced :]
        foreseen = [one.token for one in drawn[:forced]] == known
        return drawn[forced:] if foreseen else []

    def _anchor(self, request: Request) -> int:
        return self._contexts[request.id, request.choice].end

    def _blocks(self, requests: Sequence[Request], counts: Sequence[int]) -> ForwardBatch:
        starts = np.concatenate([[0], np.cumsum([count + 1 for count in counts])]).astype(np.int32)
        ids = np.full(starts[-1], self.config.mask_token_id, dtype=np.int32)
        anchors = np.array([self._anchor(request) for request in requests], dtype=np.int32)
        ids[starts[:-1]] = [request.tokens[self._anchor(request)] for request in requests]
        within = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], np.diff(starts))
        pairs = list(zip(requests, anchors + np.array(counts), strict=True))
        tables = np.zeros((len(requests), max(end for _, end in pairs) // BLOCK_SIZE + 1), np.int32)
        for row, (request, end) in enumerate(pairs):
            used = end // BLOCK_SIZE + 1
            tables[row, :used] = request.blocks[:used]
        return ForwardBatch(
            ids=ids,
            positions=np.repeat(anchors, np.diff(starts)) + within,
            seq_starts=starts,
            block_tables=tables,
            logit_rows=np.flatnonzero(within).astype(np.int32),
            first=np.array([self._first(request) for request in requests], dtype=np.int32),
        )

    def _first(self, request: Request) -> int:
        """The first position that the draft sees."""
        first = self._contexts[request.id, request.choice].first
        if self.window is None:
            return first
        return max(first, self._anchor(request) - self.window)

    def _draw_all(
        self, requests: Sequence[Request], counts: Sequence[int], output: BlockOutput
    ) -> list[list[Drawn]]:
        argmax, confidence = output.argmax.tolist(), output.confidence.tolist()
        drafts: list[list[Drawn]] = []
        end = 0
        for request, count in zip(requests, counts, strict=True):
            rows = slice(end, end + count)
            end += count
            if not all(map(math.isfinite, confidence[rows])):
                drafts.append([])  # its context overflowed: no number, no draft
            elif self._selector is not None:
                drafts.append(self._selector.walk(request, output, rows, self._draw))
            elif request.params.greedy or self._draw == "argmax":
                pairs = zip(argmax[rows], confidence[rows], strict=True)
                drafts.append([Drawn(token, None, sure) for token, sure in pairs])
            else:
                drafts.append(self._draw_rows(request, output, rows))
        return drafts

    def _draw_rows(self, request: Request, output: BlockOutput, rows: slice) -> list[Drawn]:
        assert output.logits is not None
        drawn = []
        forced = len(request.tokens) - 1 - self._anchor(request)
        for index, row in enumerate(range(rows.start, rows.stop), -forced):
            logits = self._whole(output.logits[row])
            drawn.append(draw_token(logits, int(output.argmax[row]), request, index, self._draw))
        return drawn

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """A row over the whole vocabulary; what a cut head lacks is impossible."""
        if self._head_ids is None:
            return logits
        row = logits.new_full((self.config.layers.vocab_size,), -torch.inf)
        row[self._head_ids.to(logits.device)] = logits
        return row


def _q_rows(draft: list[Drawn]) -> list[Any] | None:
    return [drawn.q for drawn in draft] if draft and draft[0].q is not None else None


def check_target(name: str, checkpoint: DFlashCheckpoint, target: TargetInfo) -> None:
    """Raises ModelError where the drafter was not made for this target, naming what differs."""
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
    if pad is not None:
        special.append(("padding token", pad))
    check_mask(config, target.vocab_size, tuple(special), f"drafter {name}")


@register("dflash")
def _build(spec: DrafterSpec, context: BuildContext) -> DFlashDrafter:
    if spec.value is None:
        expected = f"a drafter after it: {spec.kind}:PATH or a hub id"
        raise InvalidRequest(f"drafter {spec.name}", spec.kind, expected)
    settings = dflash_defaults(context) | read_options(spec, DFLASH_OPTIONS)
    return DFlashDrafter(spec.name, load_checkpoint(spec.value), **settings)


def dflash_defaults(context: BuildContext) -> dict[str, Any]:
    """The settings of a drafter that a spec leaves open."""
    return {**context.network_settings(device=False), **context.draw, "window": context.window}


DFLASH_OPTIONS = {
    "max_draft_len": draft_len(),
    "window": whole(1, 2**31 - 1),
    "head": one_of(*HEADS),
    "draw": one_of(*DRAWS),
    "dtype": one_of(*DTYPES),
    "backend": one_of("auto", "native", "torch"),
    "quantize": one_of("none", *QUANTIZE),
}
