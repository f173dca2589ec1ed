"""From the output of DFlash blocks to their drafts, with DFlash 2's selector where there is one.

The selector finds a path through the most likely tokens of each slot:

score_t(a, b) = U_t(b) + <A[a] * (W h_t), B[b]> for candidate b behind token a, where U are the
backbone's logits, h its hidden states, and A, B two codebooks of low rank (the authors' package
`dflash` 0.1.0). The walk starts at the anchor and goes from left to right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from paceline.core import Request, SparseRow
from paceline.drafters.draw import Drawn, draw_token
from paceline.kernels import ops
from paceline.models.dflash.batch import BlockOutput, DFlashNetwork
from paceline.models.dflash.config import DFlashConfig, SecondGeneration
from paceline.models.dflash.tensors import PREDECESSORS, SELECTOR_PROJECTION, SUCCESSORS


class BlockDraws:
    """Draws the drafts of many blocks. `how` is one of `drafters.draw.DRAWS`; `head_ids` are the
    token ids of a cut head, None for the whole head; `selector` is DFlash 2's."""

    def __init__(self, config: DFlashConfig, how: str, head_ids: torch.Tensor | None) -> None:
        self.config, self.how, self.head_ids = config, how, head_ids
        self.selector: CandidateWalk | None = None

    def need_logits(self, requests: Sequence[Request]) -> bool:
        """Return whether the logits of these requests' blocks are drawn from."""
        sampled = any(not request.params.greedy for request in requests)
        return self.selector is not None or (sampled and self.how != "argmax")

    def draw(
        self,
        requests: Sequence[Request],
        counts: Sequence[int],
        forced: Sequence[Sequence[int]],
        output: BlockOutput,
    ) -> list[list[Drawn]]:
        """Draw the tokens of each request's block, which has `counts[i]` slots.

        `forced[i]` are tokens of the request that stand in the block's first slots. A draft goes on
        from them where the block foresaw them; otherwise there is none: its context is not there.
        """
        argmax, confidence = output.argmax.tolist(), output.confidence.tolist()
        drafts: list[list[Drawn]] = []
        end = 0
        for request, count, expected in zip(requests, counts, forced, strict=True):
            rows = slice(end, end + count)
            end += count
            if not all(map(math.isfinite, confidence[rows])):
                draft = []  # its context overflowed: no number, no draft
            elif self.selector is not None:
                draft = self.selector.walk(request, output, rows, self.how)
            elif request.params.greedy or self.how == "argmax":
                pairs = zip(argmax[rows], confidence[rows], strict=True)
                draft = [Drawn(token, None, sure) for token, sure in pairs]
            else:
                draft = self._draw_rows(request, output, range(rows.start, end), len(expected))
            foreseen = [drawn.token for drawn in draft[: len(expected)]] == list(expected)
            drafts.append(draft[len(expected) :] if foreseen else [])
        return drafts

    def _draw_rows(
        self, request: Request, output: BlockOutput, rows: range, forced: int
    ) -> list[Drawn]:
        drawn = []
        for index, row in enumerate(rows, -forced):
            assert output.logits is not None
            logits = output.logits[row]
            if self.head_ids is not None:  # tokens that a cut head lacks are impossible
                whole = logits.new_full((self.config.layers.vocab_size,), -torch.inf)
                whole[self.head_ids.to(logits.device)] = logits
                logits = whole
            drawn.append(draw_token(logits, int(output.argmax[row]), request, index, self.how))
        return drawn


class CandidateWalk:
    """Weights of a selector, its codebooks in the network's dtype, and the walk."""

    def __init__(
        self, second: SecondGeneration, weights: Mapping[str, torch.Tensor], network: DFlashNetwork
    ) -> None:
        def load(name: str) -> torch.Tensor:
            return weights[name].to(network.device, network.dtype, copy=True)

        self._predecessors, self._successors = load(PREDECESSORS), load(SUCCESSORS)
        self._projection = load(SELECTOR_PROJECTION).float()
        self._top_k, self._head_ids = second.selector_top_k, network.head_ids
        tensors = (self._predecessors, self._successors, self._projection)
        self.weight_bytes = sum(tensor.nbytes for tensor in tensors)

    def walk(self, request: Request, output: BlockOutput, rows: slice, how: str) -> list[Drawn]:
        """Draw the draft of one request, whose mask slots are `rows` of the output.

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
        noise: Sequence[np.ndarray | None] = [None] * len(ids)
        if not request.params.greedy and how != "argmax":
            noise = list(self._noise(request, ids, how))
        index, draft = 0, []
        for scores, slot_ids, slot_noise in zip(table, ids, noise, strict=True):
            index, drawn = _pick(request, scores[index], slot_ids, slot_noise, how)
            draft.append(drawn)
        return draft

    def _scores(
        self, anchor: int, candidates: torch.Tensor, unary: torch.Tensor, hidden: torch.Tensor
    ) -> np.ndarray:
        """Return the scores of each candidate behind each candidate of the slot before, [slots,
        before, candidates], all at once: the walk looks them up. Before slot 0 is the anchor."""
        before = torch.cat((torch.full_like(candidates[:1], anchor), candidates[:-1]))
        # In float32: for so few rows stock bfloat16 products take several times as long.
        seen = torch.nn.functional.linear(hidden.float(), self._projection)
        reach = self._predecessors[before].float() * seen[:, None]
        links = torch.bmm(reach, self._successors[candidates].float().transpose(1, 2))
        return (unary[:, None] + links).cpu().numpy()

    @staticmethod
    def _noise(request: Request, ids: torch.Tensor, how: str) -> np.ndarray:
        """Return the noise of each slot's candidates: the target's own, or the draft's."""
        positions = request.position + torch.arange(len(ids))[:, None].expand_as(ids)
        keys = {"round_start": request.position, "role": ops.ROLE_DRAFT} if how == "sample" else {}
        noise = ops.gumbel_noise_of(ids, positions, request.seed, choice=request.choice, **keys)
        return noise.numpy()


def _pick(
    request: Request, scores: np.ndarray, ids: torch.Tensor, noise: np.ndarray | None, how: str
) -> tuple[int, Drawn]:
    """Return the place of the token that is taken among the candidates `ids`, and the token."""
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
    shares: np.ndarray = weights / weights.sum()
    return shares
