"""On-policy rounds: blocks that the drafter samples itself, judged by the target.

At each anchor the drafter samples SAMPLES blocks, a group. The reward of a block is the number of
tokens that the target is expected to accept, and its advantage is the reward against the rest of
the group (GRPO, arXiv 2402.03300). No critic is needed, and no clipping: each group is learnt from
once, by the drafter that sampled it.

The target accepts a token that is what it says itself (the rule `match`), and the text is what it
said. So a block is judged along the text, up to the first token that departs from it:

    reward(x) = sum over k of [x_1 … x_(k-1) are the text's] * p_k(x_k)

where p_k is the target's distribution behind the text so far. It counts the departing token with
the chance that the target says it, too; what would follow is unknown, since the target never read
that text, and counts nothing. The mean of the reward over the texts that the target may say is
nevertheless exactly the expected number of accepted tokens: by the chain rule it is the sum over k
of the chance that the target says x_1 … x_k. So no second pass of the target over the sampled
blocks is needed. This is not so under speculative sampling, which accepts more tokens than `match`:
`expected_al` is for that.

A greedy text says all: there p is 1 for the text's token, and nothing behind the first other token
can be accepted. A text that was drawn under a grammar, with penalties or from a cut distribution is
judged by its own tokens too. In the mean over such texts that is exact as well, with more noise.
"""

from __future__ import annotations

import torch

from paceline.training.seen import Soft

SAMPLES = 16  # blocks of a group
TO_START = 0.02  # share of the divergence from the drafter that the run began with
# Added to the standard deviation of a group's rewards, which may all be the same.
LEAST_DEVIATION = 1e-3


def on_policy_loss(
    log_q: torch.Tensor,
    labels: torch.Tensor,
    counts: torch.Tensor,
    soft: Soft | None,
    start: torch.Tensor,
) -> torch.Tensor:
    """Return the loss of blocks that the drafter samples itself, [blocks, slots].

    log_q float [blocks, slots, head]; `labels`, `counts`, `soft` and `start` are as in
    losses.block_loss; without `soft` the text's tokens judge. The advantage of a block counts for
    the slots up to the first one that departs from the text. These slots also stay close to the
    drafter of `start`: the divergence from it is added with the share TO_START. Uses torch's
    generator.
    """
    blocks, slots, _ = log_q.shape
    flat = log_q.detach().exp().flatten(0, 1)
    drafts = torch.multinomial(flat, SAMPLES, replacement=True).view(blocks, slots, SAMPLES)
    rewards, judged = verdicts(drafts, labels, counts, soft)
    credit = advantages(rewards)[:, None] * judged
    policy = -(credit * log_q.gather(-1, drafts)).mean(-1)
    log_start = torch.log_softmax(start.float(), dim=-1)
    moved = (log_q.exp() * (log_q - log_start)).sum(-1)
    return policy + TO_START * moved * judged.float().mean(-1)


def verdicts(
    drafts: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor, soft: Soft | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards of drafts, float [blocks, samples], and the slots that the target judges,
    bool [blocks, slots, samples]: those up to the first one that departs from the text. drafts
    int64 [blocks, slots, samples] are rows of the head."""
    follows = (drafts == labels[..., None]) & counts[..., None]
    judged = torch.ones_like(follows)
    judged[:, 1:] = follows.cumprod(1)[:, :-1].bool()
    judged &= counts[..., None]
    chances = follows.float() if soft is None else _chances(drafts, follows, soft)
    return (chances * judged).sum(1), judged


def _chances(drafts: torch.Tensor, follows: torch.Tensor, soft: Soft) -> torch.Tensor:
    """Return the chance that the target says each drafted token, float [blocks, slots, samples]. At
    other temperatures than 1 all tokens that `soft` lacks count as one, which understates the
    chances a little below 1."""
    assert soft.temperatures is not None
    temperatures = soft.temperatures[:, None, None]
    power = 1 / torch.where(temperatures > 0, temperatures, 1)
    shares = soft.probabilities**power
    others = (1 - soft.probabilities.sum(-1, keepdim=True)).clamp(min=0) ** power
    shares = shares / (shares.sum(-1, keepdim=True) + others)
    same = soft.rows[:, :, None] == drafts[..., None]
    said = (shares[:, :, None] * same).sum(-1)
    return torch.where(temperatures > 0, said, follows.float())


def advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Return how much better each block is than its group, in standard deviations: [blocks,
    samples], with a sum of 0 in every group."""
    above = rewards - rewards.mean(1, keepdim=True)
    return above / (rewards.std(1, keepdim=True) + LEAST_DEVIATION)
