"""DFlash 2's candidate selector: a path through the most likely tokens of each slot.

score_t(a, b) = U_t(b) + <A[a] * (W h_t), B[b]> for candidate b behind token a, where U are the
backbone's logits, h its hidden states, and A, B two codebooks of low rank (the authors' package
`dflash` 0.1.0). The walk starts at the anchor and goes from left to right.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline.core import Request, SparseRow
from paceline.drafters.draw import Drawn
from paceline.kernels import ops
from paceline.models.dflash.batch import BlockOutput, DFlashNetwork
from paceline.models.dflash.config import SecondGeneration
from paceline.models.dflash.tensors import PREDECESSORS, SELECTOR_PROJECTION, SUCCESSORS


class CandidateSelector:
    """Weights of a selector, in the network's dtype, and the walk."""

    def __init__(
        self,
        second: SecondGeneration,
        weights: Mapping[str, torch.Tensor],
        network: DFlashNetwork,
    ) -> None:
        def load(name: str) -> torch.Tensor:
            return weights[name].to(network.device, network.dtype, copy=True)

        self._predecessors, self._successors = load(PREDECESSORS), load(SUCCESSORS)
        self._projection = load(SELECTOR_PROJECTION)
        self._top_k, self._head_ids = second.selector_top_k, network.head_ids
        tensors = (self._predecessors, self._successors, self._projection)
        self.weight_bytes = sum(tensor.nbytes for tensor in tensors)

    def walk(self, request: Request, output: BlockOutput, rows: slice, how: str) -> list[Drawn]:
        """The draft of one request, whose mask slots are `rows` of the output.

        `how` as in `drafters.draw`, over the candidates alone: "sample" gives q over them, which is
        what the rules `token` and `block` need; the request's top_k, top_p and min_p do not narrow
        it. The confidence is the largest probability of the scores.
        """
        assert output.logits is not None and output.hidden is not None
        unary, columns = torch.topk(output.logits[rows], self._top_k, dim=-1)
        candidates = columns
        if self._head_ids is not None:
            candidates = self._head_ids.to(columns.device)[columns]
        seen = torch.nn.functional.linear(output.hidden[rows], self._projection)
        following = self._successors[candidates]  # [slots, candidates, rank]
        noise = None if request.params.greedy else self._noise(request, candidates.cpu(), how)
        token, draft = request.tokens[-1], []
        for slot in range(len(unary)):
            link = following[slot] @ (self._predecessors[token] * seen[slot])
            scores = (unary[slot] + link.float()).cpu()
            own = None if noise is None else noise[slot]
            drawn = _pick(request, scores, candidates[slot].cpu(), own, how)
            draft.append(drawn)
            token = drawn.token
        return draft

    @staticmethod
    def _noise(request: Request, ids: torch.Tensor, how: str) -> torch.Tensor | None:
        """Noise of each slot's candidates: the target's own, or the draft's."""
        if how == "argmax":
            return None
        positions = request.position + torch.arange(len(ids))[:, None].expand_as(ids)
        own = {"round_start": request.position, "role": ops.ROLE_DRAFT} if how == "sample" else {}
        return ops.gumbel_noise_of(ids, positions, request.seed, choice=request.choice, **own)


def _pick(
    request: Request,
    scores: torch.Tensor,
    ids: torch.Tensor,
    noise: torch.Tensor | None,
    how: str,
) -> Drawn:
    confidence = float(torch.softmax(scores, 0).max())
    if noise is None:
        return Drawn(int(ids[scores.argmax()]), None, confidence)
    scaled = scores / request.params.temperature
    token = int(ids[(scaled + noise).argmax()])
    q = SparseRow(ids, torch.softmax(scaled, 0)) if how == "sample" else None
    return Drawn(token, q, confidence)
