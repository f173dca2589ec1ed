"""NativeNetwork: bfloat16 on CPU, a whole forward in one call of the fused kernels."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, MutableMapping

import numpy as np
import torch

from paceline.core import KVSpec, ModelError
from paceline.kernels import abi, build
from paceline.kernels.packing import LANES, Arena, arena_bytes, pack, padded
from paceline.models.batch import BLOCK_SIZE, ForwardBatch, ForwardOutput
from paceline.models.config import ModelConfig
from paceline.models.rope import rope_tables
from paceline.models.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_prefix

Weights = Mapping[str, torch.Tensor]


def native_available(config: ModelConfig | None = None) -> tuple[bool, str]:
    """Whether NativeNetwork can run (this model) here, and the kernel path or why not."""
    if config is not None and config.head_dim % LANES:
        return False, f"head_dim {config.head_dim} is no multiple of {LANES}"
    return build.available()


class NativeNetwork:
    """Implements `paceline.models.batch.Network` for bfloat16 on CPU.

    `weights` maps Hugging Face names to tensors; they are packed into one copy, and removed from
    the mapping on the way where it allows that. Positions of a batch are below `max_positions`.
    Raises ModelError when the kernels cannot run here or the model does not fit them.
    """

    def __init__(self, config: ModelConfig, weights: Weights, max_positions: int) -> None:
        usable, why = native_available(config)
        if not usable:
            raise ModelError(f"native kernels: {why}")
        native = build.load()
        self.config, self.device, self.path = config, torch.device("cpu"), native.path
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_layers, self.max_positions = config.num_layers, max_positions
        self.kv_spec = KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, 2)
        self.library = native.library
        self._kept: list[torch.Tensor] = []  # what the structures below point into
        self._layers = (abi.Layer * config.num_layers)()
        self._arena = Arena(arena_bytes(_matrix_shapes(config)))
        self._model = self._pack(weights)
        self.streamed_bytes = self._arena.used
        self.weight_bytes = self.streamed_bytes + sum(tensor.nbytes for tensor in self._kept)
        self._workspace = _Workspace(native.library)
        self._batch = abi.Batch()
        self._logits = torch.empty(0, config.vocab_size)
        self._argmax = torch.empty(0, dtype=torch.int64)
        self._features = torch.empty(0, dtype=torch.bfloat16)
        self._kv: Arena | None = None
        self.num_blocks = 0

    def allocate_kv(self, num_blocks: int) -> None:
        """Allocates zeroed KV for `num_blocks` blocks of BLOCK_SIZE tokens, replacing any before.

        Per layer, keys [block][kv_head][head_dim / 2][16 tokens][2] and values
        [block][kv_head][8 token pairs][head_dim][2], bf16. Pages are taken as they are written.
        """
        config = self.config
        self._kv = None  # freed first: both might not fit
        size = num_blocks * BLOCK_SIZE * config.num_kv_heads * config.head_dim * 2
        self._kv = Arena(2 * config.num_layers * padded(size, 4096))
        for layer in self._layers:
            layer.k_cache = self._kv.take(size).data_ptr()
            layer.v_cache = self._kv.take(size).data_ptr()
        self.num_blocks = num_blocks

    def forward(self, batch: ForwardBatch, feature_layers: tuple[int, ...] = ()) -> ForwardOutput:
        """Computes all rows, writes their KV, returns logits of the rows asked for.

        Feature l (bf16) is the residual stream after layer l, before the final norm. The tensors
        returned are views of buffers that the next forward overwrites.
        """
        rows, outputs = len(batch.ids), len(batch.logit_rows)
        if not rows:
            return ForwardOutput(self._logits[:0], self._argmax[:0])
        if int(batch.positions.max()) >= self.max_positions:
            raise ValueError(f"position {batch.positions.max()} is past {self.max_positions - 1}")
        self._reserve(rows, outputs, len(feature_layers))
        taps = np.array(feature_layers, dtype=np.int32)
        to = self._batch
        to.rows, to.sequences, to.outputs = rows, len(batch.seq_starts) - 1, outputs
        to.table_stride, to.taps = batch.block_tables.shape[1], len(taps)
        to.threads = torch.get_num_threads()
        to.ids, to.positions = _address(batch.ids), _address(batch.positions)
        to.seq_starts, to.block_tables = _address(batch.seq_starts), _address(batch.block_tables)
        to.logit_rows, to.tap_layers = _address(batch.logit_rows), _address(taps)
        if self.library.pl_forward(self._model_ref, self._batch_ref, self._workspace.handle):
            raise MemoryError(f"no memory for a forward of {rows} rows")
        features = None
        if len(taps):
            width = len(taps) * self.hidden_size
            features = self._features[: rows * width].view(rows, width)
        return ForwardOutput(self._logits[:outputs], self._argmax[:outputs], features)

    def read_weights(self) -> None:
        """Reads the packed weights once, with the forward's threads, and does nothing else."""
        data = ctypes.c_void_p(self._arena.data.data_ptr())
        self.library.pl_read(data, ctypes.c_int64(self.streamed_bytes), torch.get_num_threads())

    def _reserve(self, rows: int, outputs: int, taps: int) -> None:
        if outputs > len(self._logits):
            capacity = max(16, padded(outputs, 16))
            self._logits = torch.empty(capacity, self.vocab_size)
            self._argmax = torch.empty(capacity, dtype=torch.int64)
        if rows * taps * self.hidden_size > len(self._features):
            self._features = torch.empty(rows * taps * self.hidden_size, dtype=torch.bfloat16)
        to = self._batch
        to.logits, to.argmax = self._logits.data_ptr(), self._argmax.data_ptr()
        to.features = self._features.data_ptr()
        self._batch_ref = ctypes.byref(to)

    # -- packing --------------------------------------------------------------------------------

    def _pack(self, weights: Weights) -> abi.Model:
        config = self.config
        for index, layer in enumerate(self._layers):
            self._pack_layer(layer, weights, layer_prefix(index))
        model = abi.Model(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            layers=config.num_layers,
            vocab=config.vocab_size,
            rotary_half=config.head_dim // 2,
            epsilon=config.rms_norm_eps,
            scale=config.head_dim**-0.5,
            layer=ctypes.cast(self._layers, ctypes.POINTER(abi.Layer)),
        )
        if not config.tie_word_embeddings:
            model.embedding = self._keep(_take(weights, EMBEDDING), torch.bfloat16)
        model.head = self._matrix(
            [_take(weights, EMBEDDING if config.tie_word_embeddings else HEAD)]
        )
        model.final_norm = self._keep(_take(weights, FINAL_NORM))
        cos, sin = rope_tables(config, self.max_positions)
        model.cos, model.sin = self._keep(cos), self._keep(sin)
        self._model_ref = ctypes.byref(model)
        return model

    def _pack_layer(self, layer: abi.Layer, weights: Weights, prefix: str) -> None:
        config = self.config

        def take(name: str) -> torch.Tensor:
            return _take(weights, prefix + name)

        def linears(room: str, *names: str) -> list[torch.Tensor]:
            return [take(f"{room}.{name}.weight") for name in names]

        def biases(wanted: bool, room: str, *names: str) -> list[torch.Tensor] | None:
            return [take(f"{room}.{name}.bias") for name in names] if wanted else None

        qkv, gate_up = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
        layer.qkv = self._matrix(
            linears("self_attn", *qkv), biases(config.qkv_bias, "self_attn", *qkv)
        )
        layer.o = self._matrix(
            linears("self_attn", "o_proj"), biases(config.o_bias, "self_attn", "o_proj")
        )
        layer.gate_up = self._gate_up(
            linears("mlp", *gate_up), biases(config.mlp_bias, "mlp", *gate_up)
        )
        layer.down = self._matrix(
            linears("mlp", "down_proj"), biases(config.mlp_bias, "mlp", "down_proj")
        )
        layer.attention_norm = self._keep(take("input_layernorm.weight"))
        layer.mlp_norm = self._keep(take("post_attention_layernorm.weight"))
        if config.qk_norm:
            layer.q_norm = self._keep(take("self_attn.q_norm.weight"))
            layer.k_norm = self._keep(take("self_attn.k_norm.weight"))

    def _matrix(
        self, parts: list[torch.Tensor], biases: list[torch.Tensor] | None = None
    ) -> abi.Matrix:
        """Packs the parts below each other."""
        n, k = sum(len(part) for part in parts), parts[0].shape[1]
        room = self._arena.take_matrix(n, k)
        pack(parts[0] if len(parts) == 1 else torch.cat(parts), room)
        bias = self._keep(torch.cat(biases)) if biases else None
        return abi.Matrix(room.data_ptr(), bias, n, k)

    def _gate_up(self, parts: list[torch.Tensor], biases: list[torch.Tensor] | None) -> abi.Matrix:
        """Packs gate and up panel by panel in turn, so that SwiGLU finds both in one work item."""
        k, n = parts[0].shape[1], 2 * padded(len(parts[0]), LANES)
        room = self._arena.take_matrix(n, k)
        for which, part in enumerate(parts):
            pack(part, room[which::2])
        if biases is None:
            return abi.Matrix(room.data_ptr(), None, n, k)
        both = torch.zeros(2, n // 2)
        both[:, : len(biases[0])] = torch.stack(biases)
        bias = self._keep(both.view(2, -1, LANES).transpose(0, 1))
        return abi.Matrix(room.data_ptr(), bias, n, k)

    def _keep(self, tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> int:
        """Address of a copy that lives as long as this network."""
        self._kept.append(tensor.to(dtype, copy=True).contiguous())
        return self._kept[-1].data_ptr()


class _Workspace:
    """Buffers that the forwards of one network share."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.pl_workspace_create.restype = ctypes.c_void_p
        self.handle = ctypes.c_void_p(library.pl_workspace_create())
        weakref.finalize(self, library.pl_workspace_destroy, self.handle)


def _take(weights: Weights, name: str) -> torch.Tensor:
    return weights.pop(name) if isinstance(weights, MutableMapping) else weights[name]


def _address(array: np.ndarray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise TypeError(f"a batch holds contiguous int32 arrays, not {array.dtype}")
    return array.ctypes.data


def _matrix_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    layer = [
        (heads + 2 * config.num_kv_heads * config.head_dim, hidden),
        (hidden, heads),
        (2 * padded(config.intermediate_size, LANES), hidden),
        (hidden, config.intermediate_size),
    ]
    return layer * config.num_layers + [(config.vocab_size, hidden)]
