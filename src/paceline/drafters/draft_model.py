"""A smaller model with the target's vocabulary drafts token by token.

Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318). Its KV lives at the target's
own slots, block for block, so the engine's block tables, prefix sharing and preemption serve it as
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.core import DraftBatch, ModelError, Request
from paceline.drafters.base import ObservedRows, StatefulDrafter, TargetInfo
from paceline.drafters.draw import DRAWS, Drawn, draft_batch, draw_token
from paceline.drafters.kinds import (
    DRAFT_LENGTH,
    NETWORK_OPTIONS,
    BuildContext,
    DrafterSpec,
    Settings,
    one_of,
    real,
    register,
)
from paceline.drafters.packing import Stretch, pack
from paceline.kernels import ops
from paceline.models.batch import BLOCK_SIZE, ForwardOutput, Network
from paceline.models.loader import LoadedModel, load_model
from paceline.models.networks import build_network

if TYPE_CHECKING:
    from paceline.models.tokenizer import Tokenizer

# So many rows cost a forward about what one does: they can wait for the next draft's forward.
FREE_ROWS = 16
# The most rows a request catches up with in one forward. A target's prefix hit that lacks this
# model's KV can be longer than any prompt chunk, and is then made good over several steps.
MOST_ROWS = 512


@dataclass(slots=True)
class _State:
    """Draft KV of one running request: that of its first `computed` tokens is in place.

    After a draft, `drafted` holds the draft tokens that were computed too, right behind them: they
    count as soon as they are committed, and are overwritten otherwise.
    """

    computed: int
    drafted: list[int] = field(default_factory=list)

    def settle(self, tokens: Sequence[int]) -> None:
        """Count the computed draft tokens that were committed since."""
        if len(tokens) == self.computed:
            return
        for token in self.drafted:
            if self.computed == len(tokens) or tokens[self.computed] != token:
                break
            self.computed += 1
        self.drafted = []


@dataclass(slots=True)
class _Draft:
    """A draft in the making: up to `wanted` tokens to follow the request's."""

    request: Request
    wanted: int
    drawn: list[Drawn] = field(default_factory=list)
    survival: float = 1.0  # estimated probability that all tokens so far are accepted

    def append(self, drawn: Drawn, floor: float) -> None:
        """Take a token, and end the draft where a further one cannot pay or would not be read.

        A token that was drawn stays, so this cut is safe under every rule: whether a token is
        there never depends on which token it is.
        """
        self.drawn.append(drawn)
        self.survival *= drawn.confidence
        ends = drawn.token in self.request.eos_ids and not self.request.params.ignore_eos
        if self.survival < floor or ends:
            self.wanted = len(self.drawn)

    @property
    def tokens(self) -> list[int]:
        return [drawn.token for drawn in self.drawn]


class DraftModelDrafter(StatefulDrafter[_State]):
    """Runs `network` over the same blocks as the target.

    A round is one forward that catches up with what was committed, then one of single rows for
    each further token. A draft ends where the estimated probability that all of it stands falls
    below `min_token_prob`: a further token pays while that is above (draft forward / target
    forward) x speedup, 0.6 for a third of the size. Tokens that only one of the two vocabularies
    has (they are padded differently) are never proposed.
    """

    parallel = False

    def __init__(
        self,
        name: str,
        network: Network,
        tokenizer: Tokenizer | None = None,
        *,
        version: str = "1",
        max_positions: int,
        max_draft_len: int = 8,
        min_token_prob: float = 0.6,
        draw: str = "coupled",
    ) -> None:
        super().__init__(name, max_draft_len)
        self.version, self.network, self.reach = version, network, max_positions
        self.kv, self.weight_bytes = network.kv_spec, network.weight_bytes
        self._tokenizer, self._draw, self._min_token_prob = tokenizer, draw, min_token_prob
        self._max_positions = max_positions
        self._vocab_size = self._target_vocab_size = network.vocab_size

    @classmethod
    def of_model(
        cls,
        name: str,
        loaded: LoadedModel,
        settings: Settings,
        version: str,
        compares_tokens: bool = True,
    ) -> DraftModelDrafter:
        """Make the drafter that runs `loaded`; `settings` are NETWORK_OPTIONS and arguments. Its
        tokens must be the target's unless `compares_tokens` is false."""
        chosen = {key: settings.pop(key) for key in NETWORK_OPTIONS}
        runs = {key: value for key, value in chosen.items() if value is not None}
        longest = loaded.max_context
        network, _ = build_network(loaded, max_positions=longest, **runs)
        tokenizer = loaded.tokenizer if compares_tokens else None
        return cls(name, network, tokenizer, version=version, max_positions=longest, **settings)

    def attach(self, target: TargetInfo) -> None:
        """Allocate KV for the target's blocks. Raises ModelError where vocabularies differ."""
        if target.block_size != BLOCK_SIZE:
            raise ModelError(
                f"drafter {self.name}: blocks of {BLOCK_SIZE} tokens, but {target.name} has blocks "
                f"of {target.block_size}"
            )
        check_same_tokens(self.name, self._tokenizer, target.name, target.tokenizer)
        self._target_vocab_size = target.vocab_size
        self._vocab_size = min(self.network.vocab_size, target.vocab_size)
        self.network.allocate_kv(target.num_blocks)

    def rehearse(self, requests: int, length: int) -> None:
        for position in range(min(length, BLOCK_SIZE)):
            rows = [Stretch([block], position, [0]) for block in range(requests)]
            self.network.forward(pack(rows))

    def start(self, request: Request, held: int) -> _State:
        return _State(held)

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        """Compute prompt chunks at once, so that no step pays for a long prompt as a whole."""
        stretches = []
        for row in rows:
            state = self._settled(row.request)
            end = min(row.start + row.count, self._max_positions)
            if state is not None and end - state.computed > FREE_ROWS:
                stretches.append(self._catch_up(row.request, state, end))
        if stretches:
            self._forward(stretches, logits=False)

    def held_tokens(self, request: Request) -> int:
        state = self._settled(request)
        return 0 if state is None else state.computed

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        drafts = list(map(_Draft, requests, map(self._wanted, requests, lengths)))
        running = [draft for draft in drafts if draft.wanted > 0]
        while running:
            stretches = [self._next_stretch(draft) for draft in running]
            output = self._forward(stretches)
            for row, (draft, stretch) in enumerate(zip(running, stretches, strict=True)):
                if stretch.end >= len(draft.request.tokens):  # else it is still catching up
                    draft.append(self._draw_row(output, row, draft), self._min_token_prob)
            running = [draft for draft in running if 0 < len(draft.drawn) < draft.wanted]
        for draft in drafts:
            if draft.drawn:
                self._states[draft.request.id, draft.request.choice].drafted = draft.tokens[:-1]
        return draft_batch([draft.drawn for draft in drafts])

    def _settled(self, request: Request) -> _State | None:
        state = self.state(request)
        if state is not None:
            state.settle(request.tokens)
        return state

    def _wanted(self, request: Request, length: int) -> int:
        """Return the draft length, bounded by this model's context: the last token has no row."""
        if self._settled(request) is None:
            return 0
        reachable = self._max_positions - len(request.tokens) + 1
        return min(length, self.max_draft_len, reachable)

    def _next_stretch(self, draft: _Draft) -> Stretch:
        request = draft.request
        if draft.drawn:
            position = len(request.tokens) + len(draft.drawn) - 1
            return Stretch(request.blocks, position, [draft.drawn[-1].token])
        state = self._states[request.id, request.choice]
        return self._catch_up(request, state, len(request.tokens))

    def _catch_up(self, request: Request, state: _State, end: int) -> Stretch:
        """Return the next rows on the way to `end`, at least one: a draft starts from the last."""
        start = min(state.computed, end - 1)
        ids = request.tokens[start : min(end, start + MOST_ROWS)]
        state.computed = start + len(ids)
        return Stretch(request.blocks, start, ids)

    def _forward(self, stretches: Sequence[Stretch], logits: bool = True) -> ForwardOutput:
        """Compute rows; logits come back for the last row of each stretch, if wanted."""
        batch = pack(stretches)
        # An id that only the target has gets a stand-in, to keep the positions after it right.
        batch.ids = np.minimum(batch.ids, self.network.vocab_size - 1)
        if not logits:
            batch.logit_rows = batch.logit_rows[:0]
        return self.network.forward(batch)

    def _draw_row(self, output: ForwardOutput, row: int, draft: _Draft) -> Drawn:
        logits, argmax = output.logits[row], int(output.argmax[row])
        shared = self._vocab_size
        if len(logits) > shared:
            logits = logits[:shared]
            argmax = argmax if argmax < shared else ops.argmax(logits)
        drawn = draw_token(logits, argmax, draft.request, len(draft.drawn), self._draw)
        missing = self._target_vocab_size - shared
        if isinstance(drawn.q, torch.Tensor) and missing:
            drawn.q = torch.nn.functional.pad(drawn.q, (0, missing))
        return drawn


def check_same_tokens(
    name: str,
    ours: Tokenizer | None,
    target_name: str,
    theirs: Tokenizer | None,
) -> None:
    """Raise ModelError naming the first id that means one token here and another to the target.

    Ids that only one of the two has are let pass: vocabularies are padded, special tokens added.
    Models without a tokenizer (random weights) have nothing to compare.
    """
    if ours is None or theirs is None:
        return
    our_tokens = {token_id: token for token, token_id in ours.get_vocab().items()}
    their_tokens = {token_id: token for token, token_id in theirs.get_vocab().items()}
    for token_id in sorted(our_tokens.keys() & their_tokens.keys()):
        if our_tokens[token_id] != their_tokens[token_id]:
            raise ModelError(
                f"drafter {name}: its tokenizer is not that of {target_name}: token {token_id} is "
                f"{our_tokens[token_id]!r} here and {their_tokens[token_id]!r} there; "
                "a draft model needs the target's vocabulary"
            )


@register("draft_model", value="a model (a folder, GGUF file, hub id or name)")
def _build(spec: DrafterSpec, context: BuildContext) -> DraftModelDrafter:
    settings = context.network_settings | spec.settings(DRAFT_MODEL_OPTIONS)
    loaded = load_model(str(spec.value), what="drafter")
    return DraftModelDrafter.of_model(spec.name, loaded, settings, loaded.path.name)


DRAFT_MODEL_OPTIONS = (
    DRAFT_LENGTH | {"min_token_prob": real(0.0, 1.0), "draw": one_of(*DRAWS)} | NETWORK_OPTIONS
)
