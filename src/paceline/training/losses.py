"""The lessons of a drafter: position weights, objectives, and their sum over the target's frozen
head, all of it or the rows of the frequent tokens.

Logits are the largest thing in training, so they live for one chunk of blocks at a time: the
gradient with respect to the hidden states is computed at once and handed on (as in arXiv
2410.10989), and no second pass computes them again.

p is the target's distribution of a slot (a point for hard labels), q the drafter's. Formulas:
D-PACE arXiv 2605.18810; DFlash arXiv 2602.06036; LK arXiv 2602.23881; DSpark arXiv 2607.05147.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from paceline.models.dflash.config import DFlashConfig
from paceline.models.dflash.module import draft_logits
from paceline.training.on_policy import on_policy_loss
from paceline.training.seen import Soft
from paceline.training.top_k import top_k

SMOOTHING = 0.5  # D-PACE's alpha
DECAYS = {16: 7.0, 10: 5.0, 8: 4.0}  # DFlash's gamma by block size
LK_DECAY = 3.0  # eta of LK's hybrid
# Of one chunk's float32 logits: what stays in the caches of a CPU, and what keeps a GPU busy.
CHUNK_BYTES = {"cpu": 16 << 20, "cuda": 1 << 30}


def decay_of(size: int) -> float:
    """Return DFlash's gamma for blocks of `size`: published for 8, 10 and 16, half the block
    elsewhere."""
    return DECAYS.get(size, size / 2)


def position_weights(
    kind: str, loss: torch.Tensor, counts: torch.Tensor, in_head: torch.Tensor
) -> torch.Tensor:
    """Return the weight of each slot, [blocks, slots], without gradient.

    `loss` is the cross entropy of the slots, `counts` marks the slots that exist, and `in_head`
    those whose token the head has: no draft is accepted past a token that it lacks.
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
class Objective:
    """The objective of training: `mix` maps objectives (config.OBJECTIVES) to their shares,
    `weights` names the position weights of those that look at one slot at a time, `selector` is
    the share of the loss of DFlash 2's selector, and `round_costs` are the times of rounds that
    draft 1, 2, … tokens, in steps without drafts, for expected_speedup."""

    mix: Mapping[str, float]
    weights: str = "dpace"
    selector: float = 1.0
    round_costs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotLosses:
    """The results of slots, [blocks, slots]: the weighted `loss` (of a pack their sum), and without
    gradient whether the drafted token is `right`, the position `weights`, the plain cross entropy
    `ce` in nats (NaN where there is no slot, or no row of the head for its token), and the rows of
    the `top` most likely tokens, int64 [blocks, slots, k], where a selector chooses among them.
    `speed` [2] are the tokens that rounds would bring and the time that they would take, in steps
    without drafts, where expected_speedup is learnt."""

    loss: torch.Tensor
    right: torch.Tensor
    weights: torch.Tensor
    ce: torch.Tensor
    top: torch.Tensor | None = None
    speed: torch.Tensor | None = None


def block_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    counts: torch.Tensor,
    soft: Soft | None,
    objective: Objective,
    start: torch.Tensor | None = None,
    speedup: float = 1.0,
) -> SlotLosses:
    """Return the losses of blocks. logits float [blocks, slots, head]; labels int64 are rows of the
    head, -1 where it lacks the token; `counts` bool marks the slots that exist; `start` are the
    logits of the drafter that the run began with, for on_policy, and `speedup` is what drafts
    brought in the step before, for expected_speedup. A slot that does not exist has loss 0, and a
    token that the head lacks has cross entropy 0."""
    in_head = counts & (labels >= 0)
    log_q = torch.log_softmax(logits.float(), dim=-1)
    cross_entropy = -log_q.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    position = position_weights(objective.weights, cross_entropy, counts, in_head)
    total, speed = torch.zeros_like(cross_entropy), None
    for name, share in objective.mix.items():
        if name == "ce":
            slots = cross_entropy * in_head * position
        elif name == "expected_matches":
            slots = -((-cross_entropy).exp() * in_head).cumprod(1)
        elif name == "on_policy":
            assert start is not None
            slots = on_policy_loss(log_q, labels, counts, soft, start)
        elif name == "expected_al":
            assert soft is not None
            slots = -(acceptance(log_q, soft) * counts).cumprod(1)
        elif name == "expected_speedup":
            assert soft is not None
            reach = (acceptance(log_q, soft) * counts).cumprod(1)
            drafted, speed = paying(reach.detach(), objective.round_costs, speedup)
            slots = -reach * drafted
        else:
            assert soft is not None
            slots = soft_loss(name, log_q, soft) * counts * position
        total = total + share * slots
    right = (logits.argmax(-1) == labels) & in_head
    plain = cross_entropy.detach().masked_fill(~in_head, torch.nan)
    return SlotLosses(total, right, position, plain, speed=speed)


def acceptance(log_q: torch.Tensor, soft: Soft) -> torch.Tensor:
    """Return the chance that speculative sampling accepts a draft that was sampled from q, the sum
    of min(p, q) over the tokens of `soft`: [blocks, slots]. Its product along a block estimates the
    chance that the block gets that far, by the target's distributions along the text, and the sum
    of these products the expected number of accepted tokens, which `expected_al` maximises."""
    in_head = soft.rows >= 0
    q = torch.where(in_head, log_q.gather(-1, soft.rows.clamp(min=0)).exp(), 0)
    return torch.minimum(soft.probabilities * in_head, q).sum(-1)


def paying(
    reach: torch.Tensor, round_costs: Sequence[float], speedup: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the slots that are worth drafting, bool [blocks, slots], of blocks whose drafts are
    accepted up to each slot with the chances `reach` [blocks, slots]; and what they bring, [2]: the
    tokens of all rounds, and their time in steps without drafts.

    A block is drafted to the length with the most accepted tokens - speedup * time, the longest of
    equal ones. With the speedup that these lengths bring they are the fastest of all (Dinkelbach
    1967), so each step of a run begins with the speedup of the step before. The gradient of the
    speedup is that of the accepted tokens: at the best lengths it does not depend on the lengths.
    """
    costs = reach.new_tensor([1.0, *round_costs[: reach.shape[1]]])
    tokens = torch.nn.functional.pad(reach.cumsum(1), (1, 0))
    value = tokens - speedup * costs
    best = reach.shape[1] - value.flip(1).argmax(1)
    accepted = tokens.gather(1, best[:, None]).sum()
    drafted = torch.arange(reach.shape[1], device=reach.device) < best[:, None]
    return drafted, torch.stack([len(reach) + accepted, costs[best].sum()])


def soft_loss(name: str, log_q: torch.Tensor, soft: Soft) -> torch.Tensor:
    """Return one objective per slot, [blocks, slots], over the tokens of `soft`; other tokens count
    as never drafted. KL is without the target's entropy, which has no gradient."""
    in_head = soft.rows >= 0
    p = soft.probabilities * in_head
    log_here = log_q.gather(-1, soft.rows.clamp(min=0))
    if name == "kl":
        return -(p * log_here).sum(-1)
    accepted = acceptance(log_q, soft)
    if name == "tv":
        return 1 - accepted
    if name == "nla":  # in logarithms: its gradient is that of CE however small q is
        least = torch.minimum(p.clamp(min=1e-30).log(), log_here)
        return -least.masked_fill(p <= 0, -1e9).logsumexp(-1) * (p > 0).any(-1)
    assert name == "lk_hybrid"
    mixing = torch.exp(-LK_DECAY * accepted.detach())
    return mixing * -(p * log_here).sum(-1) + (1 - mixing) * (1 - accepted)


@dataclass(frozen=True, slots=True)
class Head:
    """The target's head for the drafters of `config`: some of its rows, `weight` [rows, hidden],
    their token ids, ascending, and `row_of` int64 [vocabulary], -1 for a token without a row."""

    config: DFlashConfig
    weight: torch.Tensor
    ids: torch.Tensor
    row_of: torch.Tensor

    @classmethod
    def of(cls, config: DFlashConfig, weight: torch.Tensor, ids: torch.Tensor) -> Head:
        row_of = torch.full((config.layers.vocab_size,), -1)
        row_of[ids] = torch.arange(len(ids))
        return cls(config, weight, ids.to(weight.device), row_of.to(weight.device))

    @property
    def candidates(self) -> int:
        """The number of tokens that DFlash 2's selector chooses from; 0 without a selector."""
        return 0 if self.config.second is None else self.config.second.selector_top_k


def likeliest(hidden: torch.Tensor, head: Head, count: int) -> torch.Tensor:
    """Return the rows of the `count` most likely tokens of every slot, best first: int64 [blocks,
    slots, count]. hidden [blocks, slots, hidden]."""
    rows = []
    for part in _chunks(hidden, head):
        logits = draft_logits(head.config, hidden[part].detach().to(head.weight.dtype), head.weight)
        rows.append(top_k(logits, count).places)
    return torch.cat(rows)


def _chunks(hidden: torch.Tensor, head: Head) -> list[slice]:
    """Return slices of blocks whose logits are computed at a time."""
    blocks, slots, _ = hidden.shape
    step = max(1, CHUNK_BYTES[hidden.device.type] // (4 * slots * len(head.weight)))
    return [slice(start, start + step) for start in range(0, blocks, step)]


def head_loss(
    hidden: torch.Tensor,
    head: Head,
    labels: torch.Tensor,
    counts: torch.Tensor,
    soft: Soft | None,
    objective: Objective,
    start: torch.Tensor | None = None,
    speedup: float = 1.0,
) -> SlotLosses:
    """Return the loss of hidden [blocks, slots, hidden] of slots 1 and on; labels int64 are rows of
    the head or -1; `start` are the hidden states of the drafter that the run began with, and
    `speedup` is what its drafts brought in the step before."""
    parts: list[SlotLosses] = []
    grads: list[torch.Tensor] = []
    best: list[torch.Tensor] = []
    for part in _chunks(hidden, head):
        leaf = hidden[part].detach().requires_grad_()
        part_soft = None if soft is None else soft.part(part)
        logits = draft_logits(head.config, leaf.to(head.weight.dtype), head.weight)
        before = None
        if start is not None:
            before = draft_logits(head.config, start[part].to(head.weight.dtype), head.weight)
        slots = block_loss(
            logits, labels[part], counts[part], part_soft, objective, before, speedup
        )
        total = slots.loss.sum()
        grads += torch.autograd.grad(total, leaf)
        if head.candidates:
            best.append(top_k(logits.detach(), head.candidates).places)
        parts.append(replace(slots, loss=total.detach()))
    speeds = [part.speed for part in parts if part.speed is not None]
    carrier = (hidden * torch.cat(grads)).sum()  # its gradient is the one that is handed on
    return SlotLosses(
        torch.stack([part.loss for part in parts]).sum() + (carrier - carrier.detach()),
        torch.cat([part.right for part in parts]),
        torch.cat([part.weights for part in parts]),
        torch.cat([part.ce for part in parts]),
        torch.cat(best) if best else None,
        torch.stack(speeds).sum(0) if speeds else None,
    )
