"""A decoder for many texts at once, each with keys and values of its own that lie in one piece.

The paged network of serving gives a row the same bits in any company. Here only throughput counts:
one product for all rows, the kernels that torch has, and no paging. A row's last bits then depend
on how many rows there are, so this decoder is for text that no request is promised.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.network import TorchNetwork
from paceline.models.whole_sequences import layer_output, norm, rotated_qkv, through_layers

log = logging.getLogger(__name__)
READ_UNIT = 128  # masked attention reads up to a multiple of so many positions
# Limits of torch's flash attention: the first GPUs that have it, and the largest head.
FLASH_CAPABILITY, FLASH_HEAD, FLASH_UNIT = (8, 0), 256, 8


class DenseDecoder:
    """The layers of `network` over keys and values [rows, context, kv_heads, head_dim] of each
    layer, in the network's dtype.

    `flash` says whether attention reads each row up to its own position (flash attention,
    arXiv 2307.08691, on CUDA); otherwise it reads all rows up to the longest, behind a mask.
    """

    def __init__(self, network: TorchNetwork, rows: int, context: int) -> None:
        config, device = network.config, network.device
        self.network, self.rows, self.context = network, rows, context
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim, self.group = config.head_dim, config.num_heads // config.num_kv_heads
        # Zeros: a masked position is multiplied by 0, and what memory held may be NaN.
        shape = (network.num_layers, 2, rows, context, self.kv_heads, self.head_dim)
        self.kv = torch.zeros(shape, device=device, dtype=network.dtype)
        self._first = torch.arange(rows, device=device) * context
        counts = torch.arange(rows + 1, device=device, dtype=torch.int32)
        self._query_starts, self._key_starts = counts * self.group, counts * context
        self.flash = flash_fits(network) and self._flash_works()

    def reach(self, longest: int) -> int:
        """Return the `length` of a step whose longest row stands at position `longest`."""
        if self.flash:
            return self.context
        return min(self.context, (longest // READ_UNIT + 1) * READ_UNIT)

    @torch.no_grad()
    def step(self, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """Compute a token of every row: ids and positions are int64 [rows]. Its keys and values
        are written first; attention reads positions 0 to its own, below `length` (see reach()).

        Nothing here waits for the device, and all shapes depend on `length` alone: a CUDA graph may
        hold it. Returns logits [rows, vocabulary] in the network's dtype.
        """
        network = self.network
        x = network.embedding.index_select(0, ids)
        angles = network.cos.index_select(0, positions), network.sin.index_select(0, positions)
        slots = self._first + positions
        sight = positions.int() + 1 if self.flash else self._mask(positions, length)
        for layer, kv in zip(network.layers, self.kv, strict=True):
            q, k, v = rotated_qkv(layer, x, angles)
            kv[0].flatten(0, 1).index_copy_(0, slots, k)
            kv[1].flatten(0, 1).index_copy_(0, slots, v)
            if self.flash:
                attended = self._flash(q, kv[0], kv[1], sight)
            else:
                attended = self._masked(q, kv[0, :, :length], kv[1, :, :length], sight)
            x = layer_output(layer, x, attended)
        return network.head.product(norm(x, network.final_norm, network.config.rms_norm_eps))

    @torch.no_grad()
    def prefill(self, rows: Tensor, ids: Tensor) -> None:
        """Write the keys and values of whole texts: `ids` int64 [texts, width] go to `rows` int64
        [texts], from position 0 on. A shorter text is filled up with any token: the steps write
        over what comes behind it before they look there."""
        width = ids.shape[1]
        for kv, (_, k, v) in zip(self.kv, through_layers(self.network, ids), strict=True):
            kv[0, :, :width].index_copy_(0, rows, k)
            kv[1, :, :width].index_copy_(0, rows, v)

    def clear(self, row: int) -> None:
        """Write zeros to the keys and values of a row: NaN would stay behind the next text's mask,
        and a masked value is still multiplied by 0."""
        self.kv[:, :, row].zero_()

    def _mask(self, positions: Tensor, length: int) -> Tensor:
        """Return 0 where a row sees a position and -inf elsewhere, [rows, 1, 1, length]."""
        hidden = torch.arange(length, device=positions.device) > positions[:, None]
        mask = torch.zeros(hidden.shape, device=positions.device, dtype=self.network.dtype)
        return mask.masked_fill_(hidden, -torch.inf)[:, None, None]

    def _masked(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend with q [rows, heads, head_dim]. The heads that share keys are rows of one product,
        so that nothing is repeated. Returns [rows, heads * head_dim]."""
        grouped = q.reshape(self.rows, self.kv_heads, self.group, self.head_dim)
        attended = functional.scaled_dot_product_attention(
            grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask
        )
        return attended.reshape(self.rows, -1)

    def _flash(self, q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """As _masked(), where row i sees its first `lengths`[i] positions (int32)."""
        grouped = q.reshape(self.rows, self.kv_heads, self.group, self.head_dim).transpose(1, 2)
        attended: Tensor = torch.ops.aten._flash_attention_forward(
            grouped.reshape(self.rows * self.group, self.kv_heads, self.head_dim),
            keys.flatten(0, 1),
            values.flatten(0, 1),
            self._query_starts,
            self._key_starts,
            self.group,
            self.context,
            0.0,  # dropout
            False,  # causal: what a row sees is in `lengths`
            False,  # debug mask
            seqused_k=lengths,
        )[0]
        attended = attended.view(self.rows, self.group, self.kv_heads, self.head_dim)
        return attended.transpose(1, 2).reshape(self.rows, -1)

    @torch.no_grad()
    def _flash_works(self) -> bool:
        """Return whether flash attention gives here what masked attention does, tried on random
        numbers: it is reached by a name of torch's that may change."""
        random = torch.Generator(self.kv.device).manual_seed(0)

        def draw(*shape: int) -> Tensor:
            noise = torch.randn(*shape, generator=random, device=self.kv.device)
            return noise.to(self.network.dtype)

        length = min(self.context, 2 * READ_UNIT)
        q, kv = draw(self.rows, self.heads, self.head_dim), self.kv[0]
        kv[:, :, :length] = draw(*kv[:, :, :length].shape)
        positions = torch.arange(self.rows, device=self.kv.device) % length
        wanted = self._masked(
            q, kv[0, :, :length], kv[1, :, :length], self._mask(positions, length)
        )
        try:
            got = self._flash(q, kv[0], kv[1], positions.int() + 1)
            error = float((got.float() - wanted.float()).abs().max())
            reason = f"it is off by {error:.3g}"
        except (RuntimeError, TypeError) as failure:
            error, reason = torch.inf, str(failure).partition("\n")[0]
        kv.zero_()
        if error <= 0.05:  # of numbers around 1 in bfloat16
            return True
        log.warning(
            "attention reads up to the longest text, flash attention fails here: %s", reason
        )
        return False


def flash_fits(network: TorchNetwork) -> bool:
    """Return whether torch's flash attention may be tried for this network."""
    dim = network.config.head_dim
    return (
        network.device.type == "cuda"
        and network.dtype == torch.bfloat16
        and dim <= FLASH_HEAD
        and dim % FLASH_UNIT == 0
        and torch.cuda.get_device_capability(network.device) >= FLASH_CAPABILITY
    )
