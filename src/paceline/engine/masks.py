"""The grammars of the running streams, and the masks of a step's rows.

Masks are built on a thread while the target's forward runs: that knows nothing of them, and the
first row to be chosen from comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from paceline.core import Request
from paceline.engine.draft import Draft
from paceline.engine.grammar import CompiledGrammar, Compiler, GrammarState
from paceline.engine.scheduler import Scheduled


class RowMasks:
    """The tokens that the grammar allows in the rows of one round; row i comes after the draft's
    first i tokens. `bits` is uint32 [rows, ceil(vocabulary / 32)], lowest bit first.

    Of a draft with branches, row n + 1 comes after node n. Nodes `refused` have no mask: the
    grammar gave up there.
    """

    def __init__(
        self,
        bits: np.ndarray,
        vocab_size: int,
        places: Sequence[int] | None = None,
        refused: frozenset[int] = frozenset(),
    ) -> None:
        self._bits, self._vocab_size, self.refused = bits, vocab_size, refused
        self._places = range(len(bits)) if places is None else places

    def along(self, places: Sequence[int]) -> RowMasks:
        """Return the masks of a path, whose row i is row places[i] of these; it may grow."""
        return RowMasks(self._bits, self._vocab_size, places, self.refused)

    def allows(self, row: int, token: int) -> bool:
        return bool(self._bits[self._places[row], token >> 5] >> (token & 31) & 1)

    def only(self, row: int) -> bool:
        """Return whether a single token is allowed."""
        return int(np.bitwise_count(self._bits[self._places[row]]).sum()) == 1

    def apply(self, row: int, logits: torch.Tensor) -> torch.Tensor:
        """The row's logits [vocabulary] with minus infinity where the grammar says no."""
        bits = self._bits[self._places[row]]
        bits = np.unpackbits(bits.view(np.uint8), bitorder="little")
        allowed = torch.from_numpy(bits[: self._vocab_size]).to(logits.device, torch.bool)
        return logits.masked_fill(~allowed, -torch.inf)


class Grammars:
    """One GrammarState for each running stream that has a grammar."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._vocab_size, self._words = compiler.vocab_size, -(-compiler.vocab_size // 32)
        self.held: dict[str, GrammarState] = {}
        self._bits = np.zeros((0, self._words), dtype=np.uint32)
        self._thread = ThreadPoolExecutor(1, "paceline-masks")

    def open(self, request: Request) -> GrammarState | None:
        """A stream begins. Its grammar has been compiled at the door, never on this thread."""
        grammar = request.params.grammar
        if grammar is None:
            return None
        assert isinstance(grammar, CompiledGrammar), "admission compiles"
        state = GrammarState(grammar.matcher, self.compiler.eos_ids[0])
        self.held[request.id] = state
        return state

    def close(self, request: Request) -> None:
        self.held.pop(request.id, None)

    def of(self, request: Request) -> GrammarState | None:
        return self.held.get(request.id)

    def build(
        self, scheduled: Sequence[Scheduled]
    ) -> Future[dict[str, RowMasks | Exception]] | None:
        """Starts on the masks of every row that a token will be chosen from, by request id. An
        error in one request's masks stands in their place."""
        if not self.held:
            return None
        entries = [e for e in scheduled if e.samples and e.request.id in self.held]
        return self._thread.submit(self._fill, entries) if entries else None

    def _fill(self, entries: list[Scheduled]) -> dict[str, RowMasks | Exception]:
        rows, end = sum(entry.outputs + entry.draft.branch_rows for entry in entries), 0
        if rows > len(self._bits):
            self._bits = np.zeros((2 * rows, self._words), dtype=np.uint32)
        masks: dict[str, RowMasks | Exception] = {}
        for entry in entries:
            start, end = end, end + entry.outputs + entry.draft.branch_rows
            bits, draft = self._bits[start:end], entry.draft
            try:
                state, refused = self.held[entry.request.id], frozenset[int]()
                state.fill(bits, draft.verified, draft.forced_verified)
                if draft.branches:
                    refused = self._fill_branches(state, bits, draft)
                masks[entry.request.id] = RowMasks(bits, self._vocab_size, refused=refused)
            except Exception as error:
                masks[entry.request.id] = error
        return masks

    def _fill_branches(self, state: GrammarState, bits: np.ndarray, draft: Draft) -> frozenset[int]:
        """Fill the rows of a draft's branches, and return the nodes that have no mask. A path may
        not end the text because the grammar gave up on another: only the first row, which every
        path has, counts for all of them."""
        if state.gave_up_at == 0:
            return frozenset(range(len(bits) - 1))
        refused: set[int] = set()
        if state.gave_up_at is not None:
            refused.update(range(state.gave_up_at - 1, draft.length))
        path = np.zeros((1 + draft.depth, self._words), dtype=np.uint32)
        for branch in draft.branches:
            path[:] = 0
            state.fill(path, branch.tokens)
            if state.gave_up_at is not None:
                refused.update(branch.nodes[max(0, state.gave_up_at - 1) :])
            for depth, node in enumerate(branch.nodes[branch.shared :], branch.shared + 1):
                bits[node + 1] = path[depth]
                if not path[depth].any():
                    refused.add(node)
        state.forgive()
        return frozenset(refused)
