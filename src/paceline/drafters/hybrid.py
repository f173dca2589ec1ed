"""`hybrid`: look-ups draft what a text repeats, DFlash drafts everything else.

A look-up takes no time and is near perfect where a text says again what was said before; DFlash
knows what the model is about to say for the first time. Who drafts is decided twice.

Before DFlash runs, the look-up's draft of a request is taken where at least as many of its tokens
are expected to stand as of DFlash's:

- of a look-up, the sum, over the draft, of the product of its chances. A chance is a confidence
  without the part that it promises too much (`sober`), times what such chances have been worth so
  far in this request: tokens that stood ÷ the chances of those that were judged;
- of DFlash, a + a² + … + aⁿ for n tokens, where a is the share of its tokens that stood so far in
  this request.

A request begins with the share of tokens that stood when the drafter's training ended, which its
folder says. Nothing is learned from one request for another.

After DFlash ran, its own confidences say more than any record. The look-up's draft is kept where
more of its tokens are expected to stand behind those that both drafts begin with.

The first choice is made before a token of this round is drawn. The second looks at drawn tokens, so
it is left out where they were sampled and are judged by their q: it biases no rule of verification.

`auto` is `hybrid` with the drafter that is shipped for the target, else look-ups alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from paceline.core import DraftBatch, InvalidRequest, ModelError, Request
from paceline.core.documents import Document
from paceline.drafters.base import Drafter, Memory, ObservedRows, StatefulDrafter, TargetInfo
from paceline.drafters.chain import ChainDrafter, look_up_drafter
from paceline.drafters.dflash import DFLASH_OPTIONS, DFlashDrafter, dflash_defaults
from paceline.drafters.kinds import BuildContext, DrafterSpec, Settings, register
from paceline.drafters.shipped import PROVENANCE, drafter_folder, find
from paceline.drafters.suffix import SUFFIX_OPTIONS, expected_accepted, read_corpus
from paceline.models.dflash.batch import DFlashNetwork
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.models.json_files import read_optional_json

SHIPPED_ROW = "shipped drafter"  # label in the start-up table

# Half or twice of PRIOR, and KEPT from 0.9 to 1, change the acceptance length by 5% at most:
# replayed over 72 answers of SmolLM2-135M, with drafters from poor to good.
USUAL = 0.8  # share of DFlash's tokens that stand, where its folder does not say
PRIOR = 8.0  # tokens that what is known before a request counts for in it
KEPT = 0.95  # what a judged draft leaves of those before it: a text changes its subject


class SetScore(Document):
    """The score of a drafter on a set: of `blocks` drafts, `positions[k]` is the share whose first
    k + 1 tokens stood."""

    model_config = ConfigDict(extra="ignore")

    blocks: Annotated[int, Field(ge=0)]
    positions: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1)]


class HeldOutScores(Document):
    """The scores at the end of a training, on held-out texts of the sets that were trained on."""

    model_config = ConfigDict(extra="ignore")

    held_out: dict[str, SetScore]


class TrainingRecord(Document):
    """The scores of a training, as provenance.json has them."""

    model_config = ConfigDict(extra="ignore")

    scores: HeldOutScores | None = None


def trained_share(folder: Path) -> float:
    """Return the share of a drafter's tokens that stood, of those judged, on held-out texts of what
    it was trained on; USUAL where its folder does not say.

    Raises ModelError where the folder says something that is no score.
    """
    try:
        trained = TrainingRecord.read(read_optional_json(folder / PROVENANCE))
    except InvalidRequest as error:
        raise ModelError(f"{folder / PROVENANCE}: {error}") from error
    scores = trained.scores.held_out.values() if trained.scores is not None else ()
    stood = sum(score.blocks * sum(score.positions) for score in scores)
    judged = sum(score.blocks * (1 + sum(score.positions[:-1])) for score in scores)
    return stood / judged if judged else USUAL


def sober(confidence: float) -> float:
    """Return the chance that a looked-up token stands: above 1/2, half the log-odds of its
    confidence. docs/benchmarks-training.md has the measurement."""
    if confidence <= 0.5:
        return confidence
    odds = math.sqrt(confidence / max(1 - confidence, 1e-6))
    return odds / (1 + odds)


@dataclass(slots=True)
class StoodShare:
    """A ratio: tokens that stood ÷ tokens that they are compared with. Older drafts count less."""

    stood: float
    of: float

    def learn(self, stood: float, of: float) -> None:
        self.stood = KEPT * self.stood + stood
        self.of = KEPT * self.of + of

    @property
    def value(self) -> float:
        return self.stood / self.of


@dataclass(slots=True)
class Pending:
    """A draft that was to follow the first `end` tokens, still to be judged. `chances` are those
    that its tokens stand, without what was learned in the request; empty for DFlash's."""

    tokens: Sequence[int]
    end: int
    chances: Sequence[float] = ()

    def compare(self, text: Sequence[int]) -> tuple[int, int]:
        """Return how many tokens stand, and how many of the text could be compared, up to the
        first wrong one."""
        same = list(map(eq, self.tokens, text[self.end :]))
        return (same.index(False), same.index(False) + 1) if False in same else (len(same),) * 2


@dataclass(slots=True)
class Standing:
    """The record of one request's drafts, verified or not."""

    dflash: StoodShare
    lookup: StoodShare = field(default_factory=lambda: StoodShare(PRIOR, PRIOR))
    proposed: Pending | None = None  # by DFlash
    looked_up: Pending | None = None

    def judge(self, text: Sequence[int]) -> None:
        """Compare the last drafts with the text of now."""
        if self.proposed is not None and len(text) > self.proposed.end:
            stood, compared = self.proposed.compare(text)
            self.dflash.learn(stood, compared)
            self.proposed = None
        if self.looked_up is not None and len(text) > self.looked_up.end:
            stood, compared = self.looked_up.compare(text)
            self.lookup.learn(stood, sum(self.looked_up.chances[:compared]))
            self.looked_up = None

    def chances(self) -> list[float]:
        """Return the chances of the tokens of what was looked up."""
        worth = self.lookup.value
        chances = () if self.looked_up is None else self.looked_up.chances
        return [min(1.0, worth * chance) for chance in chances]

    def expected(self, length: int) -> float:
        """Return the expected number of accepted tokens in a draft of `length` by DFlash."""
        rate = self.dflash.value
        return sum(rate**k for k in range(1, length + 1))

    def yields(self, tokens: Sequence[int], confidence: Sequence[float]) -> bool:
        """Return whether what was looked up is expected to go on for longer than DFlash's draft,
        behind the tokens that both begin with."""
        if self.looked_up is None or not tokens:
            return False
        same = len(list(takewhile(bool, map(eq, tokens, self.looked_up.tokens))))
        return expected_accepted(self.chances()[same:]) > expected_accepted(confidence[same:])


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
        share: float = USUAL,
    ) -> None:
        """`share` of DFlash's tokens stand, before anything is known of a request."""
        super().__init__(name, max(lookup.max_draft_len, dflash.max_draft_len))
        self.share = share
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

    def plan(self, target: TargetInfo) -> None:
        self.lookup.plan(target)
        self.dflash.plan(target)
        self.weight_bytes = self.lookup.weight_bytes + self.dflash.weight_bytes

    def attach(self, target: TargetInfo) -> None:
        self.lookup.attach(target)
        self.dflash.attach(target)
        self.weight_bytes = self.lookup.weight_bytes + self.dflash.weight_bytes

    def rehearse(self, requests: int, length: int) -> None:
        self.dflash.rehearse(requests, length)

    def start(self, request: Request, held: int) -> Standing:
        return Standing(StoodShare(self.share * PRIOR, PRIOR))

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
        drafts = zip(requests, lengths, looked_up.tokens, looked_up.confidence, strict=True)
        return looked_up, [self._enough(*draft) for draft in drafts]

    def propose(self, requests: Sequence[Request], lengths: Sequence[int]) -> DraftBatch:
        """Return DFlash's drafts."""
        return self._noted(requests, self.dflash.propose(requests, lengths))

    def propose_trees(
        self, requests: Sequence[Request], lengths: Sequence[int], nodes: Sequence[int]
    ) -> DraftBatch:
        return self._noted(requests, self.dflash.propose_trees(requests, lengths, nodes))

    def _noted(self, requests: Sequence[Request], drafted: DraftBatch) -> DraftBatch:
        """Return DFlash's drafts, which are kept to be judged by the text that comes, and say which
        of them are no better than what was looked up."""
        assert drafted.confidence is not None, "DFlash gives one for every token"
        drafted.parts, drafted.yields = ["dflash"] * len(requests), []
        for index, request in enumerate(requests):
            tokens, confidence = drafted.tokens[index], drafted.confidence[index]
            standing = self._judged(request)
            standing.proposed = Pending(tokens, len(request.tokens)) if tokens else None
            sampled = drafted.q_rows(index) is not None
            drafted.yields.append(not sampled and standing.yields(tokens, confidence))
        return drafted

    def release(self, requests: Sequence[Request]) -> None:
        super().release(requests)
        self.lookup.release(requests)
        self.dflash.release(requests)

    def _enough(
        self, request: Request, length: int, tokens: Sequence[int], confidence: Sequence[float]
    ) -> bool:
        """Return whether a look-up's draft is as good as DFlash's would be."""
        standing = self._judged(request)
        chances = list(map(sober, confidence))
        standing.looked_up = Pending(tokens, len(request.tokens), chances) if tokens else None
        if self.dflash.reach is not None and len(request.tokens) > self.dflash.reach:
            return True
        most = min(length, self.longest_proposed)
        return expected_accepted(standing.chances()) >= standing.expected(most)

    def _judged(self, request: Request) -> Standing:
        """Return the record of a request, with its last drafts judged."""
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
    where the checkpoint or its provenance cannot be read.
    """
    lookup = {key: value for key, value in settings.items() if key in SUFFIX_OPTIONS}
    dflash = dflash_defaults(context)
    dflash |= {key: value for key, value in settings.items() if key not in SUFFIX_OPTIONS}
    checkpoint = load_checkpoint(folder)
    if "max_draft_len" in settings:
        dflash["max_draft_len"] = min(settings["max_draft_len"], checkpoint.config.max_draft_len)
    drafter = DFlashDrafter(name, checkpoint, **dflash)
    share = trained_share(folder)
    return HybridDrafter(name, look_up_drafter(name, lookup), drafter, start_up_rows, share)


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
