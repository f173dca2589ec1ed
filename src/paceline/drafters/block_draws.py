"""From the output of DFlash blocks to their drafts, with DFlash 2's selector where there is one.

The selector finds a path through the most likely tokens of each slot:

score_t(a, b) = U_t(b) + <A[a] * (W h_t), B[b]> for candidate b behind token a, where U are the
backbone's logits, h its hidden states, and A, B two codebooks of low rank (the authors' package
`dflash` 0.1.0). The walk starts at the anchor and goes from left to right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.core import DraftTree, Request, SparseRow
from paceline.drafters.draw import Drawn, draw_token
from paceline.drafters.trees import SlotToken, best_tree, independent
from paceline.kernels import ops
from paceline.kernels.trees import can_grow, draft_tree
from paceline.models.dflash.batch import BlockOutput, DFlashNetwork
from paceline.models.dflash.config import DFlashConfig, SecondGeneration
from paceline.models.dflash.tensors import PREDECESSORS, SELECTOR_PROJECTION, SUCCESSORS

TREE_WIDTH = 16  # tokens of a slot that a tree may take, as many as DFlash 2's selector sees


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
        nodes: Sequence[int],
    ) -> tuple[list[list[Drawn]], list[DraftTree | None]]:
        """Draw the tokens of each request's block, which has `counts[i]` slots, and make a tree of
        up to `nodes[i]` nodes beside them; none for 0.

        `forced[i]` are tokens of the request that stand in the block's first slots. A draft goes on
        from them where the block foresaw them; otherwise there is none: its context is not there.
        Such a draft has no tree, nor has one whose tokens are not the likeliest.
        """
        argmax, confidence = output.argmax, output.confidence
        drafts: list[list[Drawn]] = []
        trees: list[DraftTree | None] = []
        end = 0
        for request, count, expected, most in zip(requests, counts, forced, nodes, strict=True):
            rows = slice(end, end + count)
            end += count
            tree = None
            likeliest = request.params.greedy or self.how == "argmax"
            branching = bool(most) and likeliest and not expected
            if not all(map(math.isfinite, confidence[rows])):
                draft = []  # its context overflowed: no number, no draft
            elif self.selector is not None:
                block = self.selector.read(request, output, rows)
                draft = block.walk(request, self.how)
                if branching:
                    tree = best_tree(block.successors, count, most)
            elif likeliest:
                pairs = zip(argmax[rows], confidence[rows], strict=True)
                draft = [Drawn(token, None, sure) for token, sure in pairs]
                if branching:
                    tree = self._tree(output, rows, draft, most)
            else:
                draft = self._draw_rows(request, output, range(rows.start, end), len(expected))
            foreseen = [drawn.token for drawn in draft[: len(expected)]] == list(expected)
            drafts.append(draft[len(expected) :] if foreseen else [])
            trees.append(tree)
        return drafts, trees

    def _tree(
        self, output: BlockOutput, rows: slice, draft: Sequence[Drawn], most: int
    ) -> DraftTree:
        """Return the best tree of up to `most` nodes, in which each slot's first candidate is the
        drafted one."""
        assert output.logits is not None
        logits = output.logits[rows]
        if not can_grow(logits):
            slots = self._candidates(logits, draft)
            return best_tree(independent(slots), len(slots), most)
        drafted = [drawn.token for drawn in draft]
        sure = [drawn.confidence for drawn in draft]
        return draft_tree(logits, self.head_ids, drafted, sure, TREE_WIDTH, most)

    def _candidates(self, logits: torch.Tensor, draft: Sequence[Drawn]) -> list[list[SlotToken]]:
        """Return the likeliest tokens of each slot, the drafted one first."""
        logits = logits.float()
        top, columns = torch.topk(logits, min(TREE_WIDTH, logits.shape[-1]), dim=-1)
        chances = torch.exp(top - logits.logsumexp(-1, keepdim=True)).tolist()
        ids = columns if self.head_ids is None else self.head_ids.to(columns.device)[columns]
        slots = []
        for drawn, tokens, shares in zip(draft, ids.tolist(), chances, strict=True):
            pairs = zip(tokens, shares, strict=True)
            others = [pair for pair in pairs if pair[0] != drawn.token]
            ranked = [(drawn.token, drawn.confidence), *others]
            slots.append([SlotToken(*pair, index) for index, pair in enumerate(ranked)])
        return slots

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
            drawn.append(draw_token(logits, output.argmax[row], request, index, self.how))
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
        """Draw the draft of one request, as ScoredBlock says."""
        return self.read(request, output, rows).walk(request, how)

    def read(self, request: Request, output: BlockOutput, rows: slice) -> ScoredBlock:
        """Score the candidates of one request, whose mask slots are `rows` of the output."""
        assert output.logits is not None and output.hidden is not None
        unary, columns = torch.topk(output.logits[rows], self._top_k, dim=-1)
        candidates = columns
        if self._head_ids is not None:
            candidates = self._head_ids.to(columns.device)[columns]
        table = self._scores(request.tokens[-1], candidates, unary, output.hidden[rows])
        return ScoredBlock(table, candidates.cpu())

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


@dataclass(frozen=True, slots=True)
class ScoredBlock:
    """The candidates of a block and the selector's scores of them: `table` [slots, candidates of
    the slot before, candidates], where before slot 0 all rows are alike, and `ids` [slots,
    candidates]."""

    table: np.ndarray
    ids: torch.Tensor

    def walk(self, request: Request, how: str) -> list[Drawn]:
        """Draw the draft of a request.

        `how` as in `drafters.draw`, over the candidates alone: "sample" gives q over them, which is
        what the rules `token` and `block` need; the request's top_k, top_p and min_p do not narrow
        it. The confidence is the largest probability of the scores.
        """
        noise: Sequence[np.ndarray | None] = [None] * len(self.ids)
        if not request.params.greedy and how != "argmax":
            noise = list(self._noise(request, how))
        index, draft = 0, []
        for scores, slot_ids, slot_noise in zip(self.table, self.ids, noise, strict=True):
            index, drawn = _pick(request, scores[index], slot_ids, slot_noise, how)
            draft.append(drawn)
        return draft

    def successors(self, slot: int, before: int) -> list[SlotToken]:
        """Return a slot's candidates behind one of the slot before, the likeliest first."""
        scores = self.table[slot, before]
        chances, ids = _softmax(scores), self.ids[slot].tolist()
        order = np.argsort(-scores, kind="stable").tolist()
        return [SlotToken(ids[index], float(chances[index]), index) for index in order]

    def _noise(self, request: Request, how: str) -> np.ndarray:
        """Return the noise of each slot's candidates: the target's own, or the draft's."""
        ids = self.ids
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
