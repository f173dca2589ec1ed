"""From a draft model's logits to a draft token: argmax, coupled to the target, or sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.core import DraftBatch, Request, SparseRow
from paceline.kernels import ops

DRAWS = ("coupled", "sample", "argmax")


@dataclass(slots=True)
class Drawn:
    """A draft token, the distribution it was sampled from (None: deterministic), the confidence."""

    token: int
    q: torch.Tensor | SparseRow | None
    confidence: float


def draw_token(logits: torch.Tensor, argmax: int, request: Request, index: int, how: str) -> Drawn:
    """Draw token `index` (from 0) of the draft of `request`; `logits` float32 [vocabulary].

    coupled   argmax(logits / T + the target's own Gumbel noise of that position): under the rule
              `match` it equals the target's token whenever the two distributions allow it
    sample    from q = softmax(logits / T), with noise of its own, keyed by the round's start:
              what the rules `token` and `block` need
    argmax    the most likely token, whatever the temperature

    At temperature 0 all three are argmax. The request's min_p, top_k and top_p narrow the draft's
    distribution as they do the target's. The confidence is the largest probability of the
    unfiltered row, so it does not look at the token drawn.
    """
    params = request.params
    confidence = math.exp(float(logits[argmax]) - ops.logsumexp(logits))
    if params.greedy or how == "argmax":
        return Drawn(argmax, None, confidence)
    inv_temperature = 1.0 / params.temperature
    threshold, tie_id = -math.inf, ops.NO_TIE
    if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
        threshold, tie_id = ops.top_threshold(
            logits, inv_temperature, params.top_k, params.top_p, params.min_p
        )
    draft_noise = {"round_start": request.position, "role": ops.ROLE_DRAFT}
    token = ops.gumbel_argmax(
        logits,
        inv_temperature=inv_temperature,
        seed=request.seed,
        choice=request.choice,
        position=request.position + index,
        threshold=threshold,
        tie_id=tie_id,
        **(draft_noise if how == "sample" else {}),  # the target's noise is the default
    )
    if how == "coupled":
        return Drawn(token, None, confidence)
    ids = torch.arange(len(logits), device=logits.device)
    kept = (logits > threshold) | ((logits == threshold) & (ids <= tie_id))
    q = torch.softmax(logits.masked_fill(~kept, -torch.inf) * inv_temperature, dim=-1)
    return Drawn(token, q, confidence)


def draft_batch(drafts: Sequence[Sequence[Drawn]]) -> DraftBatch:
    """Return the drafts, one list of drawn tokens for each request, as the engine takes them."""
    return DraftBatch(
        tokens=[[drawn.token for drawn in draft] for draft in drafts],
        q=[[d.q for d in draft] if draft and draft[0].q is not None else None for draft in drafts],
        confidence=[[drawn.confidence for drawn in draft] for draft in drafts],
    )
