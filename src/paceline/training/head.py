"""The frozen output head in training: its loss in chunks, over all tokens or the frequent ones.

Logits are the largest thing in training, so they live for one chunk of blocks at a time: the
gradient with respect to the hidden states is computed at once and handed on (as in arXiv
2410.10989), and no second pass computes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.module import draft_logits
from paceline.training.losses import SlotLosses, Soft, block_loss

CHUNK_BYTES = 16 << 20  # of one chunk's float32 logits: what stays in the caches


@dataclass(frozen=True, slots=True)
class Head:
    """Rows of the target's head: `weight` [rows, hidden], their token ids, ascending, and `row_of`
    int64 [vocabulary], -1 for a token without a row."""

    weight: torch.Tensor
    ids: torch.Tensor
    row_of: torch.Tensor

    @classmethod
    def of(cls, weight: torch.Tensor, ids: torch.Tensor, vocabulary: int) -> Head:
        row_of = torch.full((vocabulary,), -1)
        row_of[ids] = torch.arange(len(ids))
        return cls(weight, ids.to(weight.device), row_of.to(weight.device))


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective of training: `mix` maps objectives (config.OBJECTIVES) to their shares,
    `weights` names the position weights, and `selector` is the share of the loss of DFlash 2's
    selector."""

    mix: Mapping[str, float]
    weights: str = "dpace"
    selector: float = 1.0


def likeliest(
    config: DFlashConfig, hidden: torch.Tensor, head: Head, count: int = 1
) -> torch.Tensor:
    """Return the rows of the `count` most likely tokens of every slot, best first: int64 [blocks,
    slots, count]. hidden [blocks, slots, hidden]."""
    rows = []
    for part in _chunks(hidden, head):
        logits = draft_logits(config, hidden[part].detach().to(head.weight.dtype), head.weight)
        rows.append(logits.topk(count, dim=-1).indices)
    return torch.cat(rows)


def _chunks(hidden: torch.Tensor, head: Head) -> list[slice]:
    """Return slices of blocks whose logits are computed at a time."""
    blocks, slots, _ = hidden.shape
    step = max(1, CHUNK_BYTES // (4 * slots * len(head.weight)))
    return [slice(start, start + step) for start in range(0, blocks, step)]


class _Handed(torch.autograd.Function):
    """A loss whose gradient is already computed."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, loss: torch.Tensor, grad: torch.Tensor) -> Any:
        ctx.save_for_backward(grad)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> Any:
        (grad,) = ctx.saved_tensors
        return grad * outer.to(grad.dtype), None, None


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """The head's results for the slots of a pack: the summed `loss`, and without gradient `right`
    bool [blocks, slots], slots whose most likely token is the text's, their position `weights`,
    float, and the rows of the `top` most likely tokens, int64 [blocks, slots, top] or None."""

    loss: torch.Tensor
    right: torch.Tensor
    weights: torch.Tensor
    top: torch.Tensor | None


def head_loss(
    config: DFlashConfig,
    hidden: torch.Tensor,
    head: Head,
    labels: torch.Tensor,
    counts: torch.Tensor,
    soft: Soft | None,
    objective: Objective,
    top: int = 0,
) -> HeadOutput:
    """Return the loss of hidden [blocks, slots, hidden] of slots 1 and on; labels int64 are rows of
    the head or -1."""
    parts: list[tuple[torch.Tensor, SlotLosses]] = []
    grads: list[torch.Tensor] = []
    best: list[torch.Tensor] = []
    for part in _chunks(hidden, head):
        leaf = hidden[part].detach().requires_grad_()
        part_soft = None if soft is None else Soft(soft.rows[part], soft.probabilities[part])
        logits = draft_logits(config, leaf.to(head.weight.dtype), head.weight)
        slots_loss = block_loss(
            logits, labels[part], counts[part], part_soft, objective.mix, objective.weights
        )
        value = slots_loss.loss.sum()
        grads += torch.autograd.grad(value, leaf)
        if top:
            best.append(logits.detach().topk(top, dim=-1).indices)
        parts.append((value.detach(), slots_loss))
    total = torch.stack([value for value, _ in parts]).sum()
    handed: Any = _Handed
    total = handed.apply(hidden, total, torch.cat(grads))
    return HeadOutput(
        total,
        torch.cat([slots.right for _, slots in parts]),
        torch.cat([slots.weights for _, slots in parts]),
        torch.cat(best) if top else None,
    )
