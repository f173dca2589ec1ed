"""One forward: its rows, packed without padding, its parts, its output, and who computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core import KVSpec
from paceline.core.spans import Spans

BLOCK_SIZE = 16  # tokens in a KV block: also the tile that the kernels read


class Part:
    """Names of a forward's parts, as profiles show them; recipes call its products the same. In the
    fused kernels a norm counts with the product that follows it."""

    EMBED, NORM, ROTARY, ATTENTION = "embed", "norm", "rotary", "attention"
    QKV, OUTPUT, GATE_UP, DOWN = "qkv", "o", "gate_up", "down"
    TAPS, HEAD = "taps", "head"
    CONVOLUTION = "convolution"  # of DFlash 2: read in qkv, o, gate_up and down of its layers
    CONTEXT = "context"  # a DFlash drafter's projection of features


def forward_parts(layers: int) -> tuple[str, ...]:
    """Return names for the ticks of the kernels (native/abi.h): one less than there are ticks."""
    layer = (Part.QKV, Part.ROTARY, Part.ATTENTION, Part.OUTPUT, Part.GATE_UP, Part.DOWN, Part.TAPS)
    return (Part.EMBED, *layer * layers, Part.HEAD)


@dataclass(slots=True)
class ForwardBatch:
    """Rows of any mix of requests: prompt chunks, single decode rows, drafts to verify.

    Sequence i owns rows seq_starts[i]:seq_starts[i+1], at consecutive positions; the KV of position
    p lives in block block_tables[i, p // BLOCK_SIZE], offset p % BLOCK_SIZE. Rows attend to their
    own sequence, from `first` on, as the layer's Attention says. All arrays are int32 numpy.

    Sequences may share blocks. Where one needs a private copy of a block that holds a row of
    another sequence, that row is shared: its KV is written for both, at the same position. The
    sequences that share row r are sharers[share_starts[r]:share_starts[r + 1]].

    Whoever writes many batches into the same arrays gives their `addresses`, in the order of the
    fields: to ask an array costs more than to fill it. The rows of block_tables may lie apart then.
    """

    ids: np.ndarray  # [rows]
    positions: np.ndarray  # [rows]
    seq_starts: np.ndarray  # [sequences + 1]
    block_tables: np.ndarray  # [sequences, max blocks], contiguous where there are no addresses
    logit_rows: np.ndarray  # [outputs] rows whose logits are wanted
    first: np.ndarray | None = None  # [sequences] first visible position; None: 0 for all
    addresses: tuple[int, ...] | None = None  # of the arrays up to logit_rows
    share_starts: np.ndarray | None = None  # [rows + 1]; None: no row is shared
    sharers: np.ndarray | None = None  # [shares]
    logits: bool = True  # False: argmax and finite are enough; there are no logits then


@dataclass(slots=True)
class ForwardOutput:
    """The tensors may be views of buffers that the next forward overwrites."""

    logits: Tensor  # float32 [outputs, vocabulary]; [0, vocabulary] where they were left out
    argmax: Tensor  # int64 [outputs], ties to the lowest id
    finite: Tensor  # bool [outputs], whether a row holds neither NaN nor infinity
    # the residual stream after each tapped layer, [rows, len(feature_layers) * hidden] in its dtype
    features: Tensor | None = None
    on_host: tuple[np.ndarray, np.ndarray] | None = None  # argmax and finite, the same memory

    def chosen(self) -> tuple[list[int], list[bool]]:
        """Return argmax and finite as lists."""
        argmax, finite = self.on_host or (self.argmax, self.finite)
        return argmax.tolist(), finite.tolist()


class PagedNetwork(Protocol):
    """The attributes and methods that every network over paged KV has."""

    kv_spec: KVSpec
    weight_bytes: int  # bytes of its own weights in memory
    streamed_bytes: int  # the bytes that a forward of few rows reads, those that it shares included
    streamed_parts: dict[str, int]  # the same by part of the forward (Part)
    device: torch.device
    number: str  # what its linear layers are quantised to, "" where they are not

    def allocate_kv(self, num_blocks: int) -> None:
        """Allocate zeroed KV for `num_blocks` blocks of BLOCK_SIZE tokens, in place of any."""

    def clear_kv(self, num_blocks: int) -> None:
        """Write zeros to the first blocks. Memory that was never written to is not really read, so
        a forward over it is too fast to be timed."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the keys and values of whole blocks, of all layers. No target is a source."""

    def record(self, spans: Spans) -> None:
        """Let every forward from now on tell `spans` what its parts took, within the open span."""

    def read_weights(self) -> None:
        """Read the streamed bytes once, with the forward's threads, and do nothing else: the
        duration is the bandwidth bound of a forward."""


class Network(PagedNetwork, Protocol):
    """A target or draft model that computes packed rows over paged KV. Two exist, equal by test:
    TorchNetwork (any device, any dtype) and NativeNetwork (bfloat16 on CPU, fused kernels)."""

    vocab_size: int
    hidden_size: int
    num_layers: int

    def forward(self, batch: ForwardBatch, feature_layers: tuple[int, ...] = ()) -> ForwardOutput:
        """Compute every row and write its KV; logits come back for `batch.logit_rows`."""

    def embedding_rows(self, ids: Tensor) -> Tensor:
        """Return a copy of the embeddings of ids int64 [n], in the network's dtype [n, hidden]."""

    def head_rows(self, ids: Tensor) -> Tensor:
        """Return a copy of the head's rows of ids int64 [n], in the network's dtype [n, hidden]."""
