"""The training form: plain, differentiable torch over a whole sequence, with masks. It says most
simply what a DFlash drafter computes, so the serving forms are judged by it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.config import Attention
from paceline.models.dflash.config import DFlashConfig, SecondGeneration
from paceline.models.layers import Angles, rms_norm, rotate
from paceline.models.rope import rope_tables

Attend = Callable[[Attention, Tensor, Tensor, Tensor], Tensor]
"""How a layer of some kind mixes values: q [queries, heads, head_dim] and k, v [context + queries,
kv heads, head_dim] to [queries, heads, head_dim]. It decides who sees whom."""


class RMSNorm(nn.Module):
    """RMSNorm (arXiv 1910.07467) over the last dimension, in float32; on CUDA in one kernel."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        return rms_norm(x, self.weight, self.eps)


class DraftAttention(nn.Module):
    """Queries from the blocks alone; keys and values from context and blocks, by one projection."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        shape = config.layers
        self.head_dim, self.eps = shape.head_dim, shape.rms_norm_eps
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, q_size, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(q_size, shape.hidden_size, bias=shape.o_bias)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, context: Tensor, angles: Angles, kind: Attention, attend: Attend
    ) -> Tensor:
        """x [queries, hidden] is at the last of `angles` [context + queries, head_dim / 2]."""
        block = [table[len(context) :] for table in angles]
        q = rotate(self.q_norm(self._heads(self.q_proj(x))), *block)
        rows = torch.cat((context, x))
        k = rotate(self.k_norm(self._heads(self.k_proj(rows))), *angles)
        v = self._heads(self.v_proj(rows))
        mixed: Tensor = self.o_proj(attend(kind, q, k, v).flatten(1))
        return mixed

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.head_dim)


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden, size = config.layers.hidden_size, config.layers.intermediate_size
        self.gate_proj = nn.Linear(hidden, size, bias=config.layers.mlp_bias)
        self.up_proj = nn.Linear(hidden, size, bias=config.layers.mlp_bias)
        self.down_proj = nn.Linear(size, hidden, bias=config.layers.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class BlockConvolution(nn.Module):
    """DFlash 2's causal convolution along the block, before and after a sublayer. Each tap's kernel
    is a learned base plus what a projection of the sublayer's input adds for every group of
    channels. It starts as the identity."""

    def __init__(self, hidden: int, second: SecondGeneration) -> None:
        super().__init__()
        base = torch.zeros(2, second.kernel_size, hidden)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        dynamic = 2 * second.kernel_size * hidden // second.group_size
        self.kernel_projection = nn.Linear(hidden, dynamic, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def around(self, sublayer: Callable[[Tensor], Tensor], x: Tensor, slots: Tensor) -> Tensor:
        return convolved(sublayer, x, self.kernel_projection(x), self.base_kernel, slots)


class DraftLayer(nn.Module):
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        shape, second = config.layers, config.second
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn, self.mlp = DraftAttention(config), MLP(config)
        if second is not None:
            self.attention_conv = BlockConvolution(shape.hidden_size, second)
            self.mlp_conv = BlockConvolution(shape.hidden_size, second)
        self.convolved = second is not None

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        angles: Angles,
        slots: Tensor,
        kind: Attention,
        attend: Attend,
    ) -> Tensor:
        def attention(rows: Tensor) -> Tensor:
            mixed: Tensor = self.self_attn(rows, context, angles, kind, attend)
            return mixed

        normed = self.input_layernorm(x)
        if not self.convolved:
            x = x + attention(normed)
            mixed: Tensor = self.mlp(self.post_attention_layernorm(x))
            return x + mixed
        x = x + self.attention_conv.around(attention, normed, slots)
        return x + self.mlp_conv.around(self.mlp, self.post_attention_layernorm(x), slots)


class CandidateSelector(nn.Module):
    """DFlash 2's path through each slot's most likely tokens: the unary logit plus how well a token
    follows the one before it, a product of two codebooks seen through the slot's hidden state."""

    def __init__(self, config: DFlashConfig, second: SecondGeneration) -> None:
        super().__init__()
        self.top_k = second.selector_top_k
        size = (config.layers.vocab_size, second.selector_rank)
        # One codebook is zero: at first the unary logits decide. Were both, neither would learn.
        self.predecessor_codebook = nn.Parameter(torch.randn(size) * second.selector_rank**-0.5)
        self.successor_codebook = nn.Parameter(torch.zeros(size))
        self.hidden_projection = nn.Linear(
            config.layers.hidden_size, second.selector_rank, bias=False
        )


class DFlashModule(nn.Module):
    """The trained parts of a drafter. Embedding and head are the target's, and stay outside."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.layers.hidden_size, config.layers.rms_norm_eps
        self.fc = nn.Linear(config.feature_size, hidden, bias=False)
        self.hidden_norm, self.norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.layers.num_layers))
        if config.second is not None:
            self.candidate_selector = CandidateSelector(config, config.second)

    def forward(
        self, features: Tensor, embedded: Tensor, anchors: Tensor, first: int = 0
    ) -> Tensor:
        """Return hidden states of many blocks over one sequence, float [blocks, block, hidden].

        features [tokens, K * target hidden] of tokens `first`, `first` + 1, …; embedded [blocks,
        block, hidden] anchor and masks; anchors int64 [blocks], the absolute positions of the
        anchors: each block sees the context strictly before its own.
        """
        tokens = torch.arange(first, first + len(features), device=embedded.device)
        return self.run(features, tokens, embedded, anchors, Dense(tokens, anchors, embedded))

    def run(
        self, features: Tensor, tokens: Tensor, embedded: Tensor, anchors: Tensor, attend: Attend
    ) -> Tensor:
        """Return the same over any number of sequences side by side: `tokens` int64 [tokens] are
        the positions of the features' rows, each in its own sequence, and `attend` knows which."""
        blocks, size, hidden = embedded.shape
        context = self.hidden_norm(self.fc(features))
        slots = torch.arange(size, device=embedded.device).repeat(blocks)
        queries = anchors.repeat_interleave(size) + slots
        positions = torch.cat((tokens, queries))
        shape = self.config.layers
        cos, sin = rope_tables(shape.rope, shape.head_dim, int(positions.max()) + 1)
        angles = cos.to(positions.device)[positions], sin.to(positions.device)[positions]
        x = embedded.reshape(-1, hidden)
        for layer, kind in zip(self.layers, self.config.attention, strict=True):
            x = layer(x, context, angles, slots, kind, attend)
        normed: Tensor = self.norm(x)
        return normed.view(blocks, size, hidden)


class Dense:
    """One sequence's attention over a mask of everything: what faster forms must agree with."""

    def __init__(self, tokens: Tensor, anchors: Tensor, embedded: Tensor) -> None:
        size = embedded.shape[1]
        slots = torch.arange(size, device=anchors.device).repeat(len(anchors))
        owner = torch.arange(len(anchors), device=anchors.device).repeat_interleave(size)
        self._rows = tokens, anchors[owner] + slots, anchors[owner], owner
        self._visible: dict[Attention, Tensor] = {}

    def __call__(self, kind: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kind not in self._visible:
            self._visible[kind] = _visible(kind, *self._rows)
        q, k, v = (rows.transpose(0, 1)[None] for rows in (q, k, v))  # heads first
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=self._visible[kind], enable_gqa=q.shape[1] != k.shape[1]
        )
        return mixed[0].transpose(0, 1)


def _visible(
    kind: Attention, tokens: Tensor, queries: Tensor, anchors: Tensor, owner: Tensor
) -> Tensor:
    """Return bool [queries, tokens + queries]: a query sees context strictly before the block's
    anchor, and the block's own slots, up to the query's own in a causal layer; all within the
    window."""
    context = tokens < anchors[:, None]
    block = owner[:, None] == owner
    if kind.causal:
        block &= queries <= queries[:, None]
    visible = torch.cat((context, block), dim=1)
    if kind.window is None:
        return visible
    distance = queries[:, None] - torch.cat((tokens, queries))
    return visible & (distance.abs() < kind.window)


def draft_logits(config: DFlashConfig, hidden: Tensor, head: Tensor) -> Tensor:
    """Return logits float32 [..., rows of the head] of hidden states, as the config scales them."""
    return scaled_logits(config, functional.linear(hidden, head))


# -- formulas that the serving forms share ---------------------------------------------------------


def convolved(
    sublayer: Callable[[Tensor], Tensor], x: Tensor, projected: Tensor, base: Tensor, slots: Tensor
) -> Tensor:
    """Return DFlash 2's sublayer, whose input x [rows, hidden] and output are convolved along the
    block. `slots` [rows] is each row's place in its block, whose start no tap crosses.

    The kernels of both convolutions are base [2, taps, hidden] plus what `projected` [rows, 2 *
    taps * groups] gives each group of channels.
    """
    _, taps, hidden = base.shape
    dynamic = projected.view(len(projected), 2, taps, -1)
    dynamic = dynamic.repeat_interleave(hidden // dynamic.shape[-1], dim=-1)
    before, after = (dynamic + base.to(projected.dtype)).transpose(0, 1)
    return _convolve(sublayer(_convolve(x, before, slots)), after, slots)


def _convolve(x: Tensor, kernels: Tensor, slots: Tensor) -> Tensor:
    """Return the convolution of x [rows, hidden] with kernels [rows, taps, hidden]."""
    out = kernels[:, 0] * x
    for tap in range(1, kernels.shape[1]):
        earlier = functional.pad(x[:-tap], (0, 0, tap, 0))[: len(x)]
        out = out + kernels[:, tap] * torch.where((slots >= tap)[:, None], earlier, 0)
    return out


def scaled_logits(config: DFlashConfig, logits: Tensor) -> Tensor:
    """Return the head's raw output as the config scales and caps it, in float32."""
    logits = logits.float()
    if config.output_multiplier != 1:  # a product with 1 takes as long as with anything else
        logits = logits * config.output_multiplier
    return capped(logits, config.softcap)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Return logits bent smoothly into [-softcap, softcap]; None leaves them."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap
