"""The draft pipeline: what the engine shows its drafters and what it asks of them.

Drafting.draft() takes the entries of a step through the stages look up, price, propose, fit and
cut; `engine.draft` has the value that travels.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from paceline.core import CutReason, DraftBatch, Request
from paceline.core.spans import OFF, Spans
from paceline.drafters.base import (
    Branching,
    Drafter,
    LookingUp,
    Networked,
    ObservedRows,
    longest_proposed,
)
from paceline.engine.backlog import Backlog
from paceline.engine.branches import TreeRoom
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.draft import Draft, fitted, no_draft, shortened, taken
from paceline.engine.kv_cache import KVCache
from paceline.engine.lengths import LengthController, make_lengths
from paceline.engine.masks import Grammars
from paceline.engine.scheduler import Scheduled
from paceline.engine.taps import Taps
from paceline.models.batch import BLOCK_SIZE

log = logging.getLogger(__name__)

COMPARABLE = 8  # steps with drafts, after one without, that are compared with it


class Drafting:
    """The registered drafters by name, and the controller of draft lengths.

    `needs_q` says that the verification rule judges sampled drafts by the q they were drawn from.
    `room` is that for trees; None: drafts are chains.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        cache: KVCache,
        grammars: Grammars,
        costs: Costs,
        *,
        needs_q: bool,
        room: TreeRoom | None = None,
    ) -> None:
        self.drafters, self._cache, self._needs_q = drafters, cache, needs_q
        self.room = room
        self._grammars = grammars
        self._looking_up: set[str] = set()
        self.use(costs)
        self.seconds = 0.0  # spent on drafting and observing, so far
        self._spans: Spans = OFF
        self._watched: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()  # for a draft, in this step
        self._proposed_by: set[str] = set()  # in this step
        self._comparable = 0  # steps to come
        self._backlog = Backlog()
        self._shown: set[str] = set()  # requests whose drafter may hold more KV than held() said

    def use(self, costs: Costs) -> None:
        """Draft lengths follow these costs from now on, and the costs follow the drafts."""
        self.costs = costs
        self.lengths = LengthController()
        self._note_drafters()
        if self.drafters:
            self.lengths = make_lengths(costs, not self._needs_q, self._looking_up)

    def add(self, name: str, cost: DraftCost) -> None:
        """Draft with a drafter that has joined `drafters` between two steps, at this cost."""
        self.costs.drafters[name] = cost
        if len(self.drafters) == 1:
            self.use(self.costs)  # there was nothing to choose lengths for
        self._note_drafters()
        self.record(self._spans)

    def remove(self, name: str, key: str) -> None:
        """Forget a drafter that has left `drafters` between two steps, and its draft KV by `key`.
        No request has it any more."""
        self.lengths.forget_drafter(name)
        self.costs.drafters.pop(name, None)
        self._cache.forget_drafter(key)
        self._note_drafters()

    def _note_drafters(self) -> None:
        """Learn which layers the drafters of now look at, and which of them look texts up."""
        drafters = self.drafters.items()
        self._taps = Taps(drafter.feature_layers for _, drafter in drafters)
        self._looking_up.clear()
        self._looking_up |= {name for name, each in drafters if isinstance(each, LookingUp)}

    def record(self, spans: Spans) -> None:
        """Drafts, and the networks that draft, tell `spans` where their time goes."""
        self._spans = spans
        for drafter in self.drafters.values():
            if isinstance(drafter, Networked) and drafter.network is not None:
                drafter.network.record(spans)

    def choose_taps(self, scheduled: Iterable[Scheduled]) -> tuple[int, ...]:
        """Decide whose features of this step their drafters see, and return the target's layers to
        tap for them, each drafter's side by side; none where no drafter looks at any."""
        if not self._taps.layers:
            return ()
        watched = [entry.request for entry in scheduled if self._sees(entry.request)]
        self._watched = frozenset(request.id for request in watched)
        used = any(self.drafters[r.drafter].feature_layers for r in watched if r.drafter)
        return self._taps.layers if used else ()

    def _sees(self, request: Request) -> bool:
        drafter = self.drafters[request.drafter] if request.drafter is not None else None
        return drafter is not None and _reaches(drafter, request) and self.lengths.sees(request)

    def watches(self, request: Request) -> bool:
        """Return whether the drafter sees the request's features, as choose_taps() has decided."""
        return request.id in self._watched

    def wants(self, request: Request, count: int) -> bool:
        """Return whether `count` rows of a request tell its drafter anything, asked before
        observe(). In most steps without drafts they do not, which then cost nothing."""
        return count >= BLOCK_SIZE or request.id in self._asked or request.id in self._watched

    def begin(self, admitted: Iterable[Request]) -> None:
        by_drafter: dict[str, list[Request]] = defaultdict(list)
        for request in admitted:
            if request.drafter is not None:
                by_drafter[request.drafter].append(request)
        for name, requests in by_drafter.items():
            held = [self._cache.held_draft_tokens(r, self.key(name)) for r in requests]
            self.drafters[name].begin(requests, held)

    def observe(self, rows: Iterable[ObservedRows]) -> None:
        """Show each drafter the rows of its requests, with the features of its own layers. Rows of
        requests that were not drafted in this step wait in the backlog."""
        start = time.perf_counter()
        by_drafter: dict[str, list[ObservedRows]] = defaultdict(list)
        for row in rows:
            name = row.request.drafter
            if name is None:
                continue
            layers = self.drafters[name].feature_layers
            row.features = self._taps.columns_of(layers, row.features)
            if row.request.id in self._asked:
                by_drafter[name].append(row)
            elif row.features is None:
                # with fewer tokens it catches up by itself
                if row.count >= BLOCK_SIZE and self._reads_text(name):
                    by_drafter[name].append(row)
            elif row.request.finish_reason is None:
                by_drafter[name] += self._backlog.add(row)
            elif self._cache.prefix_cache:
                by_drafter[name] += [*self._backlog.take([row.request.id]), row]
        for name, seen in by_drafter.items():
            self._show(name, seen)
        self.seconds += time.perf_counter() - start

    def _show(self, name: str, rows: list[ObservedRows]) -> None:
        if not rows:
            return
        start = time.perf_counter()
        self._shown |= {row.request.id for row in rows}
        self.drafters[name].observe(rows)
        seconds = time.perf_counter() - start
        self.costs.of(name).add_observation(sum(row.count for row in rows), seconds)

    def _reads_text(self, name: str) -> bool:
        """Return whether rows without features tell the drafter anything."""
        drafter = self.drafters[name]
        return not drafter.feature_layers or isinstance(drafter, LookingUp)

    def beside(self, seconds: float, expected: float, *, known: bool) -> float:
        """Return the seconds that the drafters of a step added to it beside their drafts, and learn
        that cost from the step where the cost table knows such steps (`known`).

        The step took `seconds`; by its rows the table expected `expected`. A machine that is slow
        today looks like a drafter that costs more, so only the first steps with drafts after one
        without are learned from.
        """
        asked = [self.costs.of(name) for name in self._proposed_by]
        if not asked:
            if known:
                self._comparable = COMPARABLE
            for cost in self.costs.drafters.values():
                cost.skip_step()
            return 0.0
        added = max(cost.beside for cost in asked)
        if len(asked) == 1 and known and self._comparable:
            self._comparable -= 1
            asked[0].add_step(seconds, expected)
        return added

    def give_up(self, request: Request) -> None:
        """Let a request go on without its drafter, which has raised an error."""
        try:
            self.release(request)
        except Exception:
            log.exception(
                "drafter %s cannot drop what it holds for %s", request.drafter, request.id
            )
        request.drafter, request.max_draft_len, request.drafter_failed = None, 0, True

    def release(self, request: Request) -> None:
        self._backlog.drop(request.id)
        self._shown.discard(request.id)
        if request.drafter is not None:
            self.drafters[request.drafter].release([request])

    def held(self, request: Request) -> tuple[str, int] | None:
        """The drafter's key and how many leading tokens hold its KV; None when it has none, or no
        more than at the last call."""
        if request.id not in self._shown:
            return None
        self._shown.discard(request.id)
        if request.drafter is None or self.drafters[request.drafter].kv is None:
            return None
        held = self.drafters[request.drafter].held_tokens(request)
        if held > request.computed:  # blocks that the target is still to fill
            self._shown.add(request.id)
        return self.key(request.drafter), held

    def draft(self, scheduled: Sequence[Scheduled]) -> None:
        """Give each entry its draft, looked up or proposed, fitted and cut."""
        start = time.perf_counter()
        self.lengths.begin_step(scheduled)
        by_drafter: dict[str, list[Scheduled]] = defaultdict(list)
        for entry in scheduled:
            if entry.draft_limit:
                name = entry.request.drafter
                assert name is not None
                if not _reaches(self.drafters[name], entry.request):
                    entry.draft = no_draft(CutReason.CONTEXT)
                elif not self.lengths.drafts(entry.request):
                    entry.draft = no_draft(CutReason.COST)
                else:
                    by_drafter[name].append(entry)
        self._asked = frozenset()
        self._proposed_by.clear()
        asked: list[Scheduled] = []
        for name, entries in by_drafter.items():
            early = [(e, e.draft_limit) for e in entries if self.lengths.looks_up(e.request)]
            complete = self._look_up(name, early)
            rest = [entry for entry in entries if entry.request.id not in complete]
            if rest:
                asked += self._ask(name, rest, scheduled)
        if by_drafter:
            self._asked = frozenset(entry.request.id for entry in asked)
            self._cut(scheduled)
        self.seconds += time.perf_counter() - start

    def _look_up(self, name: str, wanted: Sequence[tuple[Scheduled, int]]) -> set[str]:
        """Give requests what their drafter drafts in no time, up to these lengths. Return the ids
        of those that should get no more than that."""
        drafter = self.drafters[name]
        if not wanted or not isinstance(drafter, LookingUp):
            return set()
        requests = [entry.request for entry, _ in wanted]
        with self._spans("look up"):
            batch, complete = drafter.look_up(requests, [length for _, length in wanted])
        for index, (entry, length) in enumerate(wanted):
            draft = taken(batch, index, length, entry.draft.cut_by, looked_up=True)
            entry.draft = self._fitted(entry, draft)
        return {request.id for request, is_all in zip(requests, complete, strict=True) if is_all}

    def _ask(
        self, name: str, entries: Sequence[Scheduled], scheduled: Sequence[Scheduled]
    ) -> list[Scheduled]:
        """Have one drafter draft for the requests of which the controller thinks that it pays.
        Return those; the others keep what was looked up, or get that now, as long as the
        controller says."""
        rows, decoding = _plain_rows(scheduled)
        here, longest = {e.request.id for e in entries}, longest_proposed(self.drafters[name])
        looked_up = [e for e in scheduled if e.draft.looked_up and e.request.id not in here]
        rows += sum(len(entry.draft) for entry in looked_up)
        bounds = self.lengths.draft_lengths(entries, rows=rows, decoding=decoding, longest=longest)
        wanted = []
        for entry, bound in zip(entries, bounds, strict=True):
            entry.draft = entry.draft.because(bound.why)
            if bound.length:
                wanted.append((entry, bound.length))
        late = [(e, length) for e, length in wanted if not self.lengths.looks_up(e.request)]
        complete = self._look_up(name, late)
        asked = [(e, min(n, longest)) for e, n in wanted if e.request.id not in complete]
        if not asked:
            return []
        with self._spans("catch up"):
            self._show(name, self._backlog.take(entry.request.id for entry, _ in asked))
        self._propose(name, asked)
        return [entry for entry, _ in asked]

    def _propose(self, name: str, asked: Sequence[tuple[Scheduled, int]]) -> None:
        start = time.perf_counter()
        self._proposed_by.add(name)
        requests, lengths = [e.request for e, _ in asked], [length for _, length in asked]
        self._shown |= {request.id for request in requests}
        with self._spans("propose"):
            batch = self._proposed(self.drafters[name], requests, lengths)
        seconds = time.perf_counter() - start
        for index, (entry, length) in enumerate(asked):
            if entry.draft.looked_up and not batch.is_wanted(index):
                entry.draft = replace(entry.draft, passed_over=batch.tokens[index])
                continue
            reason = entry.draft.cut_by
            if reason is CutReason.GRAMMAR:  # that was said of what was looked up
                reason = None
            draft = taken(batch, index, length, reason, looked_up=False)
            entry.draft = self._fitted(entry, draft)
        longest = max(batch.lengths)
        if longest:
            self.costs.of(name).add_proposal(lengths, longest, seconds)

    def _proposed(
        self, drafter: Drafter, requests: Sequence[Request], lengths: Sequence[int]
    ) -> DraftBatch:
        if self.room is not None and isinstance(drafter, Branching):
            nodes = [0 if r.speculative.lossy else self.room.nodes for r in requests]
            if any(nodes):
                return drafter.propose_trees(requests, lengths, nodes)
        return drafter.propose(requests, lengths)

    def _fitted(self, entry: Scheduled, draft: Draft) -> Draft:
        grammar = self._grammars.of(entry.request)
        return fitted(draft, grammar, entry.draft_limit, judged_by_q=self._needs_q)

    def _cut(self, scheduled: Sequence[Scheduled]) -> None:
        """Leave of each draft what is worth verifying. One that was sampled and is judged by its q
        stays whole: a cut that has seen the drawn tokens would bias the output."""
        whole = self._needs_q and self.lengths.anticipating
        drafted = [e for e in scheduled if e.draft.most and not (whole and e.draft.q is not None)]
        if not drafted:
            return
        plain, decoding = _plain_rows(scheduled)
        rows = plain + sum(len(e.draft) for e in scheduled) - sum(len(e.draft) for e in drafted)
        lengths = self.lengths.verify_lengths(drafted, rows=rows, decoding=decoding)
        for entry, length in zip(drafted, lengths, strict=True):
            entry.draft = shortened(entry.draft, length)
        if self.room is not None:
            self._place_branches(self.room, drafted, rows)

    def _place_branches(self, room: TreeRoom, drafted: Sequence[Scheduled], rows: int) -> None:
        """Find room for the branches of drafts, in a step with so many rows of others."""
        room.begin_step(rows + sum(len(entry.draft) for entry in drafted))
        for entry in drafted:
            if entry.draft.branches:
                anchor = entry.start + entry.count - 1
                branches = room.place(entry.draft.branches, entry.draft.length, anchor)
                entry.draft = replace(entry.draft, branches=branches)

    def key(self, name: str) -> str:
        """Return the name of a drafter's KV, which no other version of it shares."""
        return f"{name}@{self.drafters[name].version}"


def _reaches(drafter: Drafter, request: Request) -> bool:
    return drafter.reach is None or len(request.tokens) <= drafter.reach


def _plain_rows(scheduled: Iterable[Scheduled]) -> tuple[int, int]:
    """Rows of a step without any draft, and the requests that get a token from it."""
    counts = [(entry.count, entry.samples) for entry in scheduled]
    return sum(count for count, _ in counts), sum(samples for _, samples in counts)
