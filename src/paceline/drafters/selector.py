"""DFlash 2's candidate selector: a path through the most likely tokens of each slot.

score_t(a, b) = U_t(b) + <A[a] * (W h_t), B[b]> for candidate b behind token a, where U are the
backbone's logits, h its hidden states, and A, B two codebooks of low rank (the authors' package
`dflash` 0.1.0). The walk starts at the anchor and goes from left to right.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from paceline.core import Request, SparseRow
from paceline.drafters.draw import Drawn
from paceline.kernels import ops
from paceline.models.dflash.batch import BlockOutput, DFlashNetwork
from paceline.models.dflash.config import SecondGeneration
from paceline.models.dflash.tensors import PREDECESSORS, SELECTOR_PROJECTION, SUCCESSORS


class CandidateSelector:
    """Weights of a selector, its codebooks in the network's dtype, and the walk."""

    def __init__(
        self,
        second: SecondGeneration,
        weights: Mapping[str, torch.Tensor],
        network: DFlashNetwork,
    ) -> None:
        def load(name: str) -> torch.Tensor:
            return weights[name].to(network.device, network.dtype, copy=True)

        self._predecessors, self._successors = load(PREDECESSORS), load(SUCCESSORS)
        self._projection = load(SELECTOR_PROJECTION).float()
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
        table = self._scores(request.tokens[-1], candidates, unary, output.hidden[rows])
        ids = candidates.cpu()
        noise = None if request.params.greedy else self._noise(request, ids, how)
        index, draft = 0, []
        for slot, own in enumerate(table):
            drawn_noise = None if noise is None else noise[slot]
            index, drawn = _pick(request, own[index], ids[slot], drawn_noise, how)
            draft.append(drawn)
        return draft

    def _scores(
        self, anchor: int, candidates: torch.Tensor, unary: torch.Tensor, hidden: torch.Tensor
    ) -> np.ndarray:
        """Of each candidate behind each candidate of the slot before, [slots, before, candidates],
        at once: the walk only looks them up. Before slot 0 is the anchor alone."""
        before = torch.cat((torch.full_like(candidates[:1], anchor), candidates[:-1]))
        # In float32: for so few rows stock bfloat16 products take several times as long.
        seen = torch.nn.functional.linear(hidden.float(), self._projection)
        reach = self._predecessors[before].float() * seen[:, None]
        links = torch.bmm(reach, self._successors[candidates].float().transpose(1, 2))
        return (unary[:, None] + links).cpu().numpy()

    @staticmethod
    def _noise(request: Request, ids: torch.Tensor, how: str) -> list[np.ndarray] | None:
        """Noise of each slot's candidates: the target's own, or the draft's."""
        if how == "argmax":
            return None
        positions = request.position + torch.arange(len(ids))[:, None].expand_as(ids)
        own = {"round_start": request.position, "role": ops.ROLE_DRAFT} if how == "sample" else {}
        noise = ops.gumbel_noise_of(ids, positions, request.seed, choice=request.choice, **own)
        return list(noise.numpy())


def _pick(
    request: Request, scores: np.ndarray, ids: torch.Tensor, noise: np.ndarray | None, how: str
) -> tuple[int, Drawn]:
    """The place of the token that is taken among the candidates `ids`, and the token."""
    confidence = float(_softmax(scores).max())
    if noise is None:
        index = int(scores.argmax())
        return index, Drawn(int(ids[index]), None, confidence)
    scaled = scores / request.params.temperature
    index = int((scaled + noise).argmax())
    q = SparseRow(ids, torch.from_numpy(_softmax(scaled))) if how == "sample" else None
    return index, Drawn(int(ids[index]), q, confidence)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
