"""`hybrid`: look-ups draft what a text repeats, DFlash drafts everything else.

A look-up takes no time and is near perfect where a text says again what was said before; DFlash
knows what the model is about to say for the first time. Before DFlash runs, the look-up's draft of
a request is taken where it expects at least as many accepted tokens (the sum, over the draft, of
the product of its confidences) as DFlash is expected to bring: a + a² + … + aⁿ for n tokens, where
a is the share of DFlash's tokens that stood so far in this request.

The choice is made before a token of this round is drawn, so it biases no rule of verification.

`auto` is `hybrid` with the drafter that is shipped for the target, else look-ups alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import eq
from pathlib import Path

from paceline.core import DraftBatch, Request
from paceline.drafters.base import Drafter, Memory, ObservedRows, StatefulDrafter, TargetInfo
from paceline.drafters.chain import ChainDrafter, look_up_drafter
from paceline.drafters.dflash import DFLASH_OPTIONS, DFlashDrafter, dflash_defaults
from paceline.drafters.kinds import BuildContext, DrafterSpec, Settings, register
from paceline.drafters.shipped import drafter_folder, find
from paceline.drafters.suffix import SUFFIX_OPTIONS, expected_accepted, read_corpus
from paceline.models.dflash.batch import DFlashNetwork
from paceline.models.dflash.checkpoint import load_checkpoint

SHIPPED_ROW = "shipped drafter"  # label in the start-up table

# Half or twice of any of these changes the acceptance length by a percent at most: replayed over 40
# answers of SmolLM2-135M, with drafters from poor to good.
USUAL = 0.5  # share of DFlash's tokens that stand, before anything is known of the request
PRIOR = 8.0  # tokens that this guess counts for
KEPT = 0.95  # what a judged draft leaves of those before it: a text changes its subject


@dataclass(slots=True)
class Standing:
    """The record of DFlash's drafts in one request. `proposal` was to follow the first `end`
    tokens, and is still to be judged."""

    stood: float = USUAL * PRIOR
    judged: float = PRIOR
    proposal: list[int] = field(default_factory=list)
    end: int = 0

    def judge(self, tokens: Sequence[int]) -> None:
        """Compare the proposal with the text of now, up to the first wrong token, whether the
        proposal was verified or not."""
        if not self.proposal or len(tokens) <= self.end:
            return
        same = list(map(eq, self.proposal, tokens[self.end :]))
        stood = same.index(False) if False in same else len(same)
        self.stood = KEPT * self.stood + stood
        self.judged = KEPT * self.judged + min(stood + 1, len(same))
        self.proposal = []

    def expected(self, length: int) -> float:
        """Return the expected number of accepted tokens in a draft of `length`."""
        rate = self.stood / self.judged
        return sum(rate**k for k in range(1, length + 1))


class HybridDrafter(StatefulDrafter[Standing]):
    """Look-ups and one DFlash drafter, whose features, KV and weights are the hybrid's.

    DFlash sees every row whose features are shown, whoever drafted it. Past the end of its
    positions a request gets what is looked up.
    """

    def __init__(
        self,
        name: str,
        lookup: ChainDrafter,
        dflash: DFlashDrafter,
        start_up_rows: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(name, max(lookup.max_draft_len, dflash.max_draft_len))
        self.lookup, self.dflash = lookup, dflash
        self.start_up_rows = [*start_up_rows, *dflash.start_up_rows, *lookup.start_up_rows]
        self.version = f"{lookup.version}+dflash-{dflash.version}"
        self.longest_proposed = dflash.max_draft_len
        self.feature_layers, self.kv = dflash.feature_layers, dflash.kv
        self.weight_bytes = lookup.weight_bytes + dflash.weight_bytes

    @property
    def network(self) -> DFlashNetwork:
        return self.dflash.network

    @property
    def window(self) -> int | None:
        return self.dflash.window

    @property
    def memories(self) -> Sequence[Memory]:
        return self.lookup.memories

    def attach(self, target: TargetInfo) -> None:
        self.lookup.attach(target)
        self.dflash.attach(target)
        self.weight_bytes = self.lookup.weight_bytes + self.dflash.weight_bytes

    def rehearse(self, requests: int, length: int) -> None:
        self.dflash.rehearse(requests, length)

    def start(self, request: Request, held: int) -> Standing:
        return Standing()

    def begin(self, requests: Sequence[Request], held: Sequence[int]) -> None:
        super().begin(requests, held)
        self.lookup.begin(requests, held)
        self.dflash.begin(requests, held)

    def observe(self, rows: Sequence[ObservedRows]) -> None:
        self.lookup.observe(rows)
        self.dflash.observe([row for row in rows if row.features is not None])

    def held_tokens(self, request: Request) -> int:
        return self.dflash.held_tokens(request)

    def look_up(
        self, requests: Sequence[Request], lengths: Sequence[int]
    ) -> tuple[DraftBatch, list[bool]]:
        looked_up = self.lookup.propose(requests, lengths)
        assert looked_up.confidence is not None, "a chain gives one for every token"
        return looked_up, list(map(self._enough, requests, lengths, looked_up.confidence))

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        """Return DFlash's drafts."""
        return self._noted(requests, self.dflash.propose(requests, lengths))

    def propose_trees(
        self, requests: Sequence[Request], lengths: Sequence[int], nodes: Sequence[int]
    ) -> DraftBatch:
        return self._noted(requests, self.dflash.propose_trees(requests, lengths, nodes))

    def _noted(self, requests: Sequence[Request], drafted: DraftBatch) -> DraftBatch:
        """Return DFlash's drafts, which are kept to be judged by the text that comes."""
        drafted.parts = ["dflash"] * len(requests)
        for request, tokens in zip(requests, drafted.tokens, strict=True):
            standing = self._judged(request)
            standing.proposal, standing.end = list(tokens), len(request.tokens)
        return drafted

    def release(self, requests: Sequence[Request]) -> None:
        super().release(requests)
        self.lookup.release(requests)
        self.dflash.release(requests)

    def _enough(self, request: Request, length: int, confidence: Sequence[float]) -> bool:
        """Return whether a look-up with this confidence is as good as DFlash's draft would be."""
        standing = self._judged(request)
        if self.dflash.reach is not None and len(request.tokens) > self.dflash.reach:
            return True
        most = min(length, self.longest_proposed)
        return expected_accepted(confidence) >= standing.expected(most)

    def _judged(self, request: Request) -> Standing:
        """Return the record of a request, with its last proposal judged."""
        standing = self._states[request.id, request.choice]
        standing.judge(request.tokens)
        return standing


@register("hybrid", value="a DFlash drafter (a folder, hub id or name)", remembers=True)
def _build(spec: DrafterSpec, context: BuildContext) -> HybridDrafter:
    settings = read_corpus(spec, spec.settings({**DFLASH_OPTIONS, **SUFFIX_OPTIONS}), context)
    return hybrid_drafter(spec.name, drafter_folder(str(spec.value)), settings, context)


def hybrid_drafter(
    name: str,
    folder: Path,
    settings: Settings,
    context: BuildContext,
    start_up_rows: Sequence[tuple[str, str]] = (),
) -> HybridDrafter:
    """Make the drafter of a DFlash checkpoint's folder and look-ups.

    DFLASH_OPTIONS and SUFFIX_OPTIONS have read `settings`, and read_corpus() its corpus.
    `max_draft_len` bounds both parts; DFlash never drafts more than its block. Raises ModelError
    where the checkpoint cannot be read.
    """
    lookup = {key: value for key, value in settings.items() if key in SUFFIX_OPTIONS}
    dflash = dflash_defaults(context)
    dflash |= {key: value for key, value in settings.items() if key not in SUFFIX_OPTIONS}
    checkpoint = load_checkpoint(folder)
    if "max_draft_len" in settings:
        dflash["max_draft_len"] = min(settings["max_draft_len"], checkpoint.config.max_draft_len)
    drafter = DFlashDrafter(name, checkpoint, **dflash)
    return HybridDrafter(name, look_up_drafter(name, lookup), drafter, start_up_rows)


@register("auto", remembers=True)
def _build_auto(spec: DrafterSpec, context: BuildContext) -> Drafter:
    settings = read_corpus(spec, spec.settings(SUFFIX_OPTIONS), context)
    target = context.target
    shipped = None if target is None else find(target)
    if target is None or shipped is None:
        return look_up_drafter(spec.name, settings)
    if shipped.mismatch is not None:
        rows = [(SHIPPED_ROW, f"NOT used: {shipped.mismatch}")]
        return look_up_drafter(spec.name, settings, rows)
    rows = [(SHIPPED_ROW, f"used: DFlash, trained for these weights of {target.name}")]
    return hybrid_drafter(spec.name, shipped.folder, settings, context, rows)
