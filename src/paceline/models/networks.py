"""Choose the network that runs a model here; run sequences through one, or its first layers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paceline.core import InvalidRequest, ModelError
from paceline.kernels.packing import PAGE, packed_bytes, padded
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput, Network, Part
from paceline.models.config import ModelConfig
from paceline.models.loader import LoadedModel
from paceline.models.native_network import NativeNetwork, native_available
from paceline.models.network import TorchNetwork
from paceline.models.packed_weights import layer_shapes
from paceline.models.quantized import recipe_of
from paceline.models.tensors import layer_tensors
from paceline.models.weights import CountedWeights, SafetensorWeights, byte_progress, stored_bytes

log = logging.getLogger(__name__)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DEVICES = ("cpu", "cuda")
BACKENDS = ("auto", "native", "torch")
SEQUENCE_ROWS = 512  # of one forward through a whole sequence


def build_network(
    loaded: LoadedModel,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    backend: str = "auto",
    quantize: str | None = None,
    max_positions: int | None = None,
) -> tuple[Network, str]:
    """Read the weights into a network; the string says which one it is and why.

    `auto` takes the fused kernels where they run (bfloat16 on CPU, with a compiler), else torch.
    Positions of a batch are below `max_positions` (default: the model's context). Raises ModelError
    for a choice that is unknown or cannot be had here, and InvalidRequest for such a device or
    `quantize`.
    """
    given = {"dtype": (dtype, DTYPES), "device": (device, DEVICES), "backend": (backend, BACKENDS)}
    for field, (value, choices) in given.items():
        if value not in choices:
            raise ModelError(f"{field}: got {value!r}; expected one of {', '.join(choices)}")
    check_device(device)
    native, why = native_fits(loaded.config, dtype, device)
    if backend == "native" and not native:
        raise ModelError(f"backend: got 'native', but {why}; expected auto or torch")
    fused = native and backend != "torch"
    recipe = recipe_of(quantize, device, dtype, why if fused else None)
    positions = max_positions or loaded.max_context
    with byte_progress(f"loading {loaded.name}", stored_bytes(loaded.weights)) as advance:
        weights = CountedWeights(loaded.weights, advance)
        if fused:
            stored = loaded.weights if isinstance(loaded.weights, SafetensorWeights) else None
            network: Network = NativeNetwork(loaded.config, weights, positions, recipe, stored)
            return network, f"native kernels ({why})"
        if backend == "auto" and device == "cpu" and dtype == "bfloat16":
            log.warning("plain torch runs instead of the fused kernels, and is slower: %s", why)
        network = TorchNetwork(loaded.config, weights, device, DTYPES[dtype], positions, recipe)
        return network, f"torch ({'asked for' if backend == 'torch' else why})"


def check_device(device: str) -> None:
    """Raise InvalidRequest for a device that torch does not see here."""
    if device == "cuda" and not torch.cuda.is_available():
        built = "" if torch.version.cuda else f": torch {torch.__version__} is built without CUDA"
        raise InvalidRequest("device", device, f"cpu: torch sees no CUDA device here{built}")


def network_bytes(
    config: ModelConfig,
    *,
    dtype: str,
    device: str,
    backend: str = "auto",
    quantize: str | None = None,
    positions: int,
) -> int:
    """Return the bytes that the network which build_network() chooses takes, from shapes alone."""
    recipe, tied = recipe_of(quantize, device, dtype), config.tie_word_embeddings
    native = backend != "torch" and native_fits(config, dtype, device)[0]
    head = (Part.HEAD, config.vocab_size, config.hidden_size)
    matrices = [*layer_shapes(config) * config.num_layers, head]
    itemsize = DTYPES[dtype].itemsize
    own_embedding = not tied or recipe.takes(Part.HEAD)
    total = own_embedding * config.vocab_size * config.hidden_size * itemsize
    for name, n, k in matrices:
        size = recipe.itemsize(name, DTYPES[dtype])
        total += padded(packed_bytes(n, k, size), PAGE) if native else n * k * size
        total += n * torch.float32.itemsize if recipe.takes(name) else 0
    return total + positions * config.head_dim * torch.float32.itemsize


def native_fits(config: ModelConfig, dtype: str, device: str) -> tuple[bool, str]:
    """Return whether the fused kernels run this network here, and their path or the reason."""
    if device != "cpu":
        return False, f"the fused kernels are for cpu, not {device}"
    if dtype != "bfloat16":
        return False, f"the fused kernels are for bfloat16, not {dtype}"
    return native_available(config)


def sequence_features(network: Network, ids: Sequence[int], layers: Sequence[int]) -> Tensor:
    """Return outputs of the target's `layers` for every token: [tokens, layers * hidden]. Computes
    into the network's first blocks: nobody else may be using its KV."""
    parts = [output.features for _, output in sequence_outputs(network, ids, layers)]
    return torch.cat([part for part in parts if part is not None])


def sequence_outputs(
    network: Network, ids: Sequence[int], layers: Sequence[int], logits: bool = False
) -> Iterator[tuple[int, ForwardOutput]]:
    """Yield the outputs of a sequence in chunks of SEQUENCE_ROWS tokens, each with its first
    position; with the logits of every token if `logits`. Only the features are copies."""
    wanted = [np.full(len(ids), logits)]
    for pieces, output in packed_outputs(network, [ids], layers, wanted):
        yield pieces[0].start, output


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Tokens `start` to `end` of one of several sequences; they are the rows of a forward from
    `row` on."""

    sequence: int
    start: int
    end: int
    row: int

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + self.end - self.start)


@dataclass(frozen=True, slots=True)
class SharedStart:
    """The start that one of several sequences has in common with an earlier one, `of`: `tokens`
    tokens, in whole blocks, whose KV it reads."""

    of: int = 0
    tokens: int = 0

    def own_blocks(self, length: int) -> int:
        """Return the blocks that the rest of a sequence of so many tokens takes."""
        return -(-(length - self.tokens) // BLOCK_SIZE)


def packed_outputs(
    network: Network,
    sequences: Sequence[Sequence[int]],
    layers: Sequence[int],
    wanted: Sequence[np.ndarray],
    starts: Sequence[SharedStart] | None = None,
    kept: int = 0,
) -> Iterator[tuple[list[PackedRows], ForwardOutput]]:
    """Yield the outputs of several sequences, packed into forwards of SEQUENCE_ROWS tokens, each
    with the pieces that are in it. `wanted[i]` marks the tokens of sequence i whose logits come
    back, bool [tokens]. What `starts[i]` says that sequence i shares has no piece of its own;
    `starts[0]` is empty. Nor have the first `kept` tokens of sequence 0, in whole blocks, with
    which sequence 0 of the call before began as well.

    The rows have the bits that a forward of one sequence alone gives them. Sequence after sequence
    takes blocks of the network's KV from the first on; nobody else may be using it.
    """
    starts = starts or [SharedStart()] * len(sequences)
    tables: list[np.ndarray] = []
    free = 0
    for ids, start in zip(sequences, starts, strict=True):
        own = np.arange(free, free + start.own_blocks(len(ids)), dtype=np.int32)
        earlier = tables[start.of][: start.tokens // BLOCK_SIZE] if start.tokens else own[:0]
        tables.append(np.concatenate([earlier, own]))
        free += len(own)
    firsts = [kept, *(start.tokens for start in starts[1:])]
    for pieces in _pieces([len(ids) for ids in sequences], firsts):
        widest = max(len(tables[piece.sequence]) for piece in pieces)
        table = np.zeros((len(pieces), widest), dtype=np.int32)
        for row, piece in zip(table, pieces, strict=True):
            row[: len(tables[piece.sequence])] = tables[piece.sequence]
        parts = [sequences[p.sequence][p.start : p.end] for p in pieces]
        marks = np.concatenate([wanted[p.sequence][p.start : p.end] for p in pieces])
        batch = ForwardBatch(
            ids=np.concatenate([np.array(part, dtype=np.int32) for part in parts]),
            positions=np.concatenate([np.arange(p.start, p.end, dtype=np.int32) for p in pieces]),
            seq_starts=np.cumsum([0, *map(len, parts)]).astype(np.int32),
            block_tables=table,
            logit_rows=marks.nonzero()[0].astype(np.int32),
        )
        output = network.forward(batch, tuple(layers))
        assert output.features is not None
        yield pieces, replace(output, features=output.features.clone())


def _pieces(lengths: Sequence[int], firsts: Sequence[int]) -> Iterator[list[PackedRows]]:
    """Cut sequences of these lengths, each from its first token on, into forwards of SEQUENCE_ROWS
    tokens."""
    pieces: list[PackedRows] = []
    row = 0
    for sequence, (length, start) in enumerate(zip(lengths, firsts, strict=True)):
        while start < length:
            end = min(length, start + SEQUENCE_ROWS - row)
            pieces.append(PackedRows(sequence, start, end, row))
            row, start = row + end - start, end
            if row == SEQUENCE_ROWS:
                yield pieces
                pieces, row = [], 0
    if pieces:
        yield pieces


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a forward: its first `layers`, with the head or without. `fraction` is the part of
    the whole forward's weights that it reads."""

    layers: int
    head: bool
    fraction: float


def nearest_share(config: ModelConfig, fraction: float) -> Share:
    """Return the share whose weights come closest to `fraction` of all; one layer at least."""
    layer = sum(
        torch.Size(shape).numel() for shape in layer_tensors(config).values() if len(shape) == 2
    )
    head = config.vocab_size * config.hidden_size
    total = config.num_layers * layer + head
    shares = [
        Share(count, with_head, (count * layer + with_head * head) / total)
        for count in range(1, config.num_layers + 1)
        for with_head in (False, True)
    ]
    return min(shares, key=lambda share: abs(share.fraction - fraction))


class LeadingLayers:
    """Runs the share of a network's forward that is nearest to `fraction`. `network` must have its
    KV already."""

    def __init__(self, network: Network, fraction: float) -> None:
        if not isinstance(network, TorchNetwork | NativeNetwork):
            raise TypeError(f"no leading layers of a {type(network).__name__}")
        self.share = nearest_share(network.config, fraction)
        self.network = network.leading(self.share.layers)

    def forward(self, batch: ForwardBatch) -> None:
        """Compute every row; the head for `batch.logit_rows`, where the share has it."""
        if not self.share.head:
            batch.logit_rows = batch.logit_rows[:0]
        self.network.forward(batch)
