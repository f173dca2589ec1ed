"""The lessons of a drafter: position weights, objectives, and their sum over blocks.

p is the target's distribution of a slot (a point for hard labels), q the drafter's. Formulas:
D-PACE arXiv 2605.18810; DFlash arXiv 2602.06036; LK arXiv 2602.23881; DSpark arXiv 2607.05147.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

SMOOTHING = 0.5  # D-PACE's alpha
DECAYS = {16: 7.0, 10: 5.0, 8: 4.0}  # DFlash's gamma by block size
LK_DECAY = 3.0  # eta of LK's hybrid


@dataclass(frozen=True, slots=True)
class Soft:
    """The target's most likely tokens at each slot: `rows` int64 [blocks, slots, k] of the head
    that is trained (-1 where that head lacks the token) and their probabilities, float."""

    rows: torch.Tensor
    probabilities: torch.Tensor


def decay_of(size: int) -> float:
    """Return DFlash's gamma for blocks of `size`: published for 8, 10 and 16, half the block
    elsewhere."""
    return DECAYS.get(size, size / 2)


def position_weights(
    kind: str, loss: torch.Tensor, counts: torch.Tensor, in_head: torch.Tensor
) -> torch.Tensor:
    """Return the weight of each slot, [blocks, slots], without gradient.

    `loss` is the cross entropy of the slots, `counts` marks the slots that exist, and `known` those
    whose token the head has: no draft is accepted past a token that it lacks.
    """
    with torch.no_grad():
        if kind == "uniform":
            return counts.float()
        if kind == "exponential":
            slots = torch.arange(loss.shape[1], device=loss.device)
            return torch.exp(-slots / decay_of(loss.shape[1] + 1)) * counts
        likely = torch.exp(-loss) * in_head
        reach = ((1 - SMOOTHING) * likely + SMOOTHING).cumprod(1) * counts
        return reach.flip(1).cumsum(1).flip(1) * counts


@dataclass(frozen=True, slots=True)
class SlotLosses:
    """The results of every slot, [blocks, slots]: its weighted `loss`, and without gradient whether
    its most likely token is `right` and its position weight."""

    loss: torch.Tensor
    right: torch.Tensor
    weights: torch.Tensor


def block_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    counts: torch.Tensor,
    soft: Soft | None,
    mix: Mapping[str, float],
    weights: str,
) -> SlotLosses:
    """Return the losses of blocks. logits float [blocks, slots, head]; labels int64 are rows of the
    head, -1 where it lacks the token; `counts` bool marks the slots that exist. A slot that does
    not exist has loss 0, and a token that the head lacks has cross entropy 0."""
    in_head = counts & (labels >= 0)
    log_q = torch.log_softmax(logits.float(), dim=-1)
    cross_entropy = -log_q.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    position = position_weights(weights, cross_entropy, counts, in_head)
    total = torch.zeros_like(cross_entropy)
    for name, share in mix.items():
        if name == "ce":
            total = total + share * cross_entropy * in_head
        else:
            assert soft is not None
            total = total + share * soft_loss(name, log_q, soft) * counts
    return SlotLosses(total * position, (logits.argmax(-1) == labels) & in_head, position)


def soft_loss(name: str, log_q: torch.Tensor, soft: Soft) -> torch.Tensor:
    """Return one objective per slot, [blocks, slots], over the tokens of `soft`; other tokens count
    as never drafted. KL is without the target's entropy, which has no gradient."""
    in_head = soft.rows >= 0
    p = soft.probabilities * in_head
    log_here = log_q.gather(-1, soft.rows.clamp(min=0))
    if name == "kl":
        return -(p * log_here).sum(-1)
    accepted = torch.minimum(p, torch.where(in_head, log_here.exp(), 0)).sum(-1)
    if name == "tv":
        return 1 - accepted
    if name == "nla":  # in logarithms: its gradient is that of CE however small q is
        least = torch.minimum(p.clamp(min=1e-30).log(), log_here)
        return -least.masked_fill(p <= 0, -1e9).logsumexp(-1) * (p > 0).any(-1)
    assert name == "lk_hybrid"
    mixing = torch.exp(-LK_DECAY * accepted.detach())
    return mixing * -(p * log_here).sum(-1) + (1 - mixing) * (1 - accepted)
