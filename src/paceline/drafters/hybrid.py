"""`hybrid`: look-ups draft what a text repeats, DFlash drafts everything else.

A look-up takes no time and is near perfect where a text says again what was said before; DFlash
knows what the model is about to say for the first time. Before DFlash runs, the look-up's draft of
a request is taken where at least as many of its tokens are expected to stand as of DFlash's:

- of a look-up, the sum, over the draft, of the product of its confidences, each of them times what
  confidences have been worth so far: tokens that stood ÷ the confidences of those judged;
- of DFlash, a + a² + … + aⁿ for n tokens, where a is the share of its tokens that stood so far.

Both are learned in each request, which begins with what the others of its cohort were like, and
apart for look-ups that expect little or much (GRADES): where a text is hard to look up it is hard
to draft, so what DFlash brought there says little about the rest. Where look-ups win, DFlash is
asked now and then all the same, less often each time: else nobody would know what it brings.

The choice is made before a token of this round is drawn, so it biases no rule of verification.

`auto` is `hybrid` with the drafter that is shipped for the target, else look-ups alone.
"""

from __future__ import annotations

from bisect import bisect_right
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

USUAL = 0.5  # share of DFlash's tokens that stand, before anything is known of a cohort
PRIOR = 8.0  # tokens that what is known of a cohort counts for in a request
KEPT = 0.95  # what a judged draft leaves of those before it: a text changes its subject
KEPT_COHORT = 0.995  # the same for a cohort, which has many texts
MOST_COHORTS = 512
GRADES = (1.0, 3.0, 8.0)  # tokens that a look-up expects to stand: from each on, one grade more
FIRST_TRY, LAST_TRY = 4, 256  # look-ups of a grade that win between two tries of DFlash

Cohort = tuple[str, bool]


@dataclass(slots=True)
class Share:
    """What stood ÷ what was looked for, in tokens. Older drafts count less."""

    stood: float
    of: float

    def learn(self, stood: float, of: float, kept: float) -> None:
        self.stood = kept * self.stood + stood
        self.of = kept * self.of + of

    def prior(self) -> Share:
        """Return a share of the same size that a few tokens change."""
        return Share(PRIOR * self.value, PRIOR)

    @property
    def value(self) -> float:
        return self.stood / self.of


@dataclass(slots=True)
class Shares:
    """DFlash's tokens that stood, of those that were judged, and look-ups', of the confidences of
    those; beside look-ups of one grade."""

    dflash: Share = field(default_factory=lambda: Share(USUAL * PRIOR, PRIOR))
    lookup: Share = field(default_factory=lambda: Share(PRIOR, PRIOR))
    pause: int = FIRST_TRY  # look-ups from one try of DFlash to the next
    left: int = FIRST_TRY  # of them

    def prior(self) -> Shares:
        return Shares(self.dflash.prior(), self.lookup.prior())

    def is_due(self) -> bool:
        """Count a look-up that wins, and return whether DFlash shall be tried in its place."""
        self.left -= 1
        return self.left <= 0

    def tried(self) -> None:
        self.pause = self.left = min(2 * self.pause, LAST_TRY)

    def lose(self) -> None:
        """DFlash wins: should it lose again, it is tried soon."""
        self.pause = self.left = FIRST_TRY


def grade(expected: float) -> int:
    """Return the grade of a look-up that expects so many tokens to stand."""
    return bisect_right(GRADES, expected)


def graded() -> list[Shares]:
    return [Shares() for _ in range(len(GRADES) + 1)]


@dataclass(slots=True)
class Pending:
    """A draft of `tokens` that was to follow the first `end` tokens, still to be judged; made
    beside a look-up of a `grade`."""

    tokens: Sequence[int]
    end: int
    grade: int
    confidence: Sequence[float] = ()

    def compare(self, text: Sequence[int]) -> tuple[int, int]:
        """Return how many tokens stand, and how many of the text could be compared, up to the
        first wrong one."""
        same = list(map(eq, self.tokens, text[self.end :]))
        return (same.index(False), same.index(False) + 1) if False in same else (len(same),) * 2


@dataclass(slots=True)
class Standing:
    """The record of one request's drafts, verified or not, beside that of its cohort; by grade."""

    cohort: list[Shares] = field(default_factory=graded)
    own: list[Shares] = field(default_factory=graded)
    proposed: Pending | None = None  # by DFlash
    found: Pending | None = None  # by a look-up
    tries: bool = False  # DFlash in this round, in place of a look-up that wins

    def judge(self, text: Sequence[int]) -> None:
        """Compare the last drafts with the text of now."""
        if (made := self.proposed) is not None and len(text) > made.end:
            stood, compared = made.compare(text)
            if compared:
                self.cohort[made.grade].dflash.learn(stood, compared, KEPT_COHORT)
                self.own[made.grade].dflash.learn(stood, compared, KEPT)
            self.proposed = None
        if (found := self.found) is not None and len(text) > found.end:
            stood, compared = found.compare(text)
            promised = sum(found.confidence[:compared])
            self.cohort[found.grade].lookup.learn(stood, promised, KEPT_COHORT)
            self.own[found.grade].lookup.learn(stood, promised, KEPT)
            self.found = None

    def enough(self, confidence: Sequence[float], length: int) -> bool:
        """Return whether of a look-up with this confidence as many tokens are expected to stand as
        of a draft of `length` by DFlash, and DFlash is not to be tried in its place."""
        self.tries = False
        if not confidence:
            return length == 0
        at = grade(expected_accepted(confidence))
        own, cohort = self.own[at], self.cohort[at]
        rate, worth = own.dflash.value, own.lookup.value
        looked_up = expected_accepted([min(1.0, worth * sure) for sure in confidence])
        if looked_up >= sum(rate**k for k in range(1, length + 1)):
            self.tries = cohort.is_due()
            return not self.tries
        cohort.lose()
        return False


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
        self._cohorts: dict[Cohort, list[Shares]] = {}

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
        key = request.cohort, request.params.greedy
        cohort = self._cohorts.pop(key, None) or graded()
        self._cohorts[key] = cohort  # behind those that were not seen for longer
        if len(self._cohorts) > MOST_COHORTS:
            del self._cohorts[next(iter(self._cohorts))]
        return Standing(cohort, [shares.prior() for shares in cohort])

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
        enough = []
        for index, (request, length) in enumerate(zip(requests, lengths, strict=True)):
            tokens, confidence = looked_up.tokens[index], looked_up.confidence[index]
            enough.append(self._enough(request, length, tokens, confidence))
        return looked_up, enough

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
            end, found = len(request.tokens), standing.found
            at = found.grade if found is not None and found.end == end else 0
            standing.proposed = Pending(list(tokens), end, at)
            if standing.tries:
                standing.cohort[at].tried()
                standing.tries = False
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
        if tokens:
            at = grade(expected_accepted(confidence))
            standing.found = Pending(list(tokens), len(request.tokens), at, list(confidence))
        if self.dflash.reach is not None and len(request.tokens) > self.dflash.reach:
            return True
        return standing.enough(confidence, min(length, self.longest_proposed))

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
