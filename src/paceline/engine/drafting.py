"""What the engine tells its drafters and asks of them."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from paceline.core import DraftBatch, Request
from paceline.core.spans import OFF, Spans
from paceline.drafters.base import (
    Drafter,
    LookingUp,
    Networked,
    ObservedRows,
    longest_proposed,
)
from paceline.engine.backlog import Backlog
from paceline.engine.costs import Costs
from paceline.engine.kv_cache import KVCache
from paceline.engine.lengths import FixedLengths, LengthController, make_lengths
from paceline.engine.masks import Grammars
from paceline.engine.scheduler import Scheduled
from paceline.models.batch import BLOCK_SIZE

log = logging.getLogger(__name__)


class Drafting:
    """The registered drafters by name, and the controller of draft lengths.

    `needs_q` says that the verification rule judges sampled drafts by the q they were drawn from.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        cache: KVCache,
        grammars: Grammars,
        *,
        needs_q: bool,
    ) -> None:
        self.drafters, self._cache, self._needs_q = drafters, cache, needs_q
        self._grammars = grammars
        self.lengths: LengthController = FixedLengths()
        self.costs: Costs | None = None
        self.seconds = 0.0  # spent on drafting and observing, so far
        self._spans: Spans = OFF
        self._watched: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()  # for a draft, in this step
        self._backlog = Backlog()
        tapped = dict.fromkeys(d.feature_layers for d in drafters.values() if d.feature_layers)
        self._layers = tuple(layer for layers in tapped for layer in layers)
        ends = list(accumulate(len(layers) for layers in tapped))
        self._columns = {
            layers: slice(end - len(layers), end) for layers, end in zip(tapped, ends, strict=True)
        }

    def use(self, costs: Costs) -> None:
        """Draft lengths follow these costs from now on, and the costs follow the drafts."""
        self.costs, self.lengths = costs, make_lengths(costs, cuts=not self._needs_q)

    def record(self, spans: Spans) -> None:
        """Drafts, and the networks that draft, tell `spans` where their time goes."""
        self._spans = spans
        for drafter in self.drafters.values():
            if isinstance(drafter, Networked) and drafter.network is not None:
                drafter.network.record(spans)

    def feature_layers(self, scheduled: Iterable[Scheduled]) -> tuple[int, ...]:
        """The target's layers to tap in a step of these rows, each drafter's side by side; none
        where nobody's drafter looks at any. Decides whose rows their drafters see."""
        watched = [entry.request for entry in scheduled if self._sees(entry.request)]
        self._watched = frozenset(request.id for request in watched)
        used = any(self.drafters[r.drafter].feature_layers for r in watched if r.drafter)
        return self._layers if used else ()

    def _sees(self, request: Request) -> bool:
        if request.drafter is None:
            return False
        return not self._too_long(request) and self.lengths.sees(request)

    def _too_long(self, request: Request) -> bool:
        most = None if request.drafter is None else self.drafters[request.drafter].reach
        return most is not None and len(request.tokens) > most

    def watches(self, request: Request) -> bool:
        """Whether its drafter sees its rows of this step, as feature_layers() has decided."""
        return request.id in self._watched

    def begin(self, admitted: Iterable[Request]) -> None:
        """Requests run, for the first time or again, with what the prefix cache holds of them."""
        by_drafter: dict[str, list[Request]] = defaultdict(list)
        for request in admitted:
            if request.drafter is not None:
                by_drafter[request.drafter].append(request)
        for name, requests in by_drafter.items():
            held = [self._cache.held_draft_tokens(r, self._key(name)) for r in requests]
            self.drafters[name].begin(requests, held)

    def observe(self, rows: Iterable[ObservedRows]) -> None:
        """Shows each drafter its requests' rows; `features` come with all that feature_layers()
        asked for, and go to a drafter with its own. Who was not asked for a draft has time."""
        start = time.perf_counter()
        by_drafter: dict[str, list[ObservedRows]] = defaultdict(list)
        for row in rows:
            name = row.request.drafter
            if name is None:
                continue
            row.features = self._own_columns(name, row.features)
            if row.request.id in self._asked:
                by_drafter[name].append(row)
            elif row.features is None:
                if row.count >= BLOCK_SIZE:  # with fewer it catches up by itself
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
        self.drafters[name].observe(rows)
        if self.costs is not None:
            seconds = time.perf_counter() - start
            self.costs.of(name).observed(sum(row.count for row in rows), seconds)

    def _own_columns(self, name: str, features: Any) -> Any:
        layers = self.drafters[name].feature_layers
        if features is None or not layers:
            return None
        if len(self._columns) == 1:
            return features
        width = features.shape[1] // len(self._layers)
        own = self._columns[layers]
        return features[:, own.start * width : own.stop * width]

    def give_up(self, request: Request) -> None:
        """Let a request go on without its drafter, which has raised an error."""
        name, request.drafter, request.max_draft_len = request.drafter, None, 0
        request.drafter_failed = True
        self._backlog.drop(request.id)
        try:
            self.drafters[name or ""].release([request])
        except Exception:
            log.exception("drafter %s cannot drop what it holds for %s", name, request.id)

    def release(self, request: Request) -> None:
        self._backlog.drop(request.id)
        if request.drafter is not None:
            self.drafters[request.drafter].release([request])

    def held(self, request: Request) -> tuple[str, int] | None:
        """The drafter's key and how many leading tokens hold its KV; None when it has none."""
        if request.drafter is None or self.drafters[request.drafter].kv is None:
            return None
        return self._key(request.drafter), self.drafters[request.drafter].held_tokens(request)

    def draft(self, scheduled: list[Scheduled]) -> dict[str, list[Any]]:
        """Asks each drafter for its requests' drafts and cuts them to what pays; returns the q rows
        of sampled ones."""
        start = time.perf_counter()
        by_drafter: dict[str, list[Scheduled]] = defaultdict(list)
        for entry in scheduled:
            if entry.draft_room:
                assert entry.request.drafter is not None
                if self._too_long(entry.request):
                    entry.cut_by = "context"
                else:
                    by_drafter[entry.request.drafter].append(entry)
        q: dict[str, list[Any]] = {}
        self._asked = frozenset()
        if not by_drafter:
            return q
        asked: list[Scheduled] = []
        for name, entries in by_drafter.items():
            welcome = [(e, e.draft_room) for e in entries if self.lengths.looks_up(e.request)]
            done = self._look_up(name, welcome)
            open_ = [entry for entry in entries if entry.request.id not in done]
            if open_:
                asked += self._ask(name, open_, scheduled, q)
        self._asked = frozenset(entry.request.id for entry in asked)
        self._cut(scheduled, [entry for entry in scheduled if entry.draft], q)
        self.seconds += time.perf_counter() - start
        return q

    def _look_up(self, name: str, wanted: list[tuple[Scheduled, int]]) -> set[str]:
        """Gives requests what their drafter can draft in no time, up to these lengths, where it
        can; returns the ids of those that should get no more than that."""
        drafter = self.drafters[name]
        if not wanted or not isinstance(drafter, LookingUp):
            return set()
        requests = [entry.request for entry, _ in wanted]
        with self._spans("look up"):
            drafts, enough = drafter.look_up(requests, [length for _, length in wanted])
        for index, (entry, length) in enumerate(wanted):
            self._put(entry, drafts, index, length)
            entry.looked_up = bool(entry.draft)
            entry.longest_proposed = drafter.longest_proposed
        return {request.id for request, is_done in zip(requests, enough, strict=True) if is_done}

    def _ask(
        self, name: str, entries: list[Scheduled], scheduled: list[Scheduled], q: dict[str, Any]
    ) -> list[Scheduled]:
        """Has one drafter draft for those of whom the controller thinks that it pays; returns them.
        The others keep what was looked up, or get that now, as long as the controller says."""
        rows, decoding = _plain_rows(scheduled)
        here = {entry.request.id for entry in entries}
        rows += sum(len(e.draft) for e in scheduled if e.looked_up and e.request.id not in here)
        lengths = self.lengths.draft_lengths(entries, rows=rows, decoding=decoding)
        wanted = [(e, n) for e, n in zip(entries, lengths, strict=True) if n]
        late = [(e, n) for e, n in wanted if not self.lengths.looks_up(e.request)]
        done, most = self._look_up(name, late), longest_proposed(self.drafters[name])
        asked = [(e, min(n, most)) for e, n in wanted if e.request.id not in done]
        if not asked:
            return []
        with self._spans("catch up"):
            self._show(name, self._backlog.take(entry.request.id for entry, _ in asked))
        return self._propose(name, asked, q)

    def _propose(
        self, name: str, asked: list[tuple[Scheduled, int]], q: dict[str, list[Any]]
    ) -> list[Scheduled]:
        """One drafter's drafts, put into their entries."""
        start = time.perf_counter()
        requests = [entry.request for entry, _ in asked]
        with self._spans("propose"):
            drafts = self.drafters[name].propose(requests, [length for _, length in asked])
        seconds = time.perf_counter() - start
        for index, (entry, length) in enumerate(asked):
            if entry.looked_up and not drafts.tokens[index]:
                continue  # better than nothing
            entry.looked_up, entry.forced = False, frozenset()
            if entry.cut_by == "grammar":  # so it was with what was looked up
                entry.cut_by = None
            self._put(entry, drafts, index, length)
            rows = drafts.q_rows(index)
            if rows is not None:
                q[entry.request.id] = rows
        longest = max(drafts.lengths)
        if longest and self.costs is not None:
            self.costs.of(name).proposed([length for _, length in asked], longest, seconds)
        return [entry for entry, _ in asked]

    def _put(self, entry: Scheduled, drafts: DraftBatch, index: int, length: int) -> None:
        """A draft into its entry, with what its drafter says of it."""
        entry.draft = drafts.tokens[index][:length]
        entry.drafted = list(entry.draft)
        entry.part = drafts.part(index) if entry.drafted else None
        entry.from_others = drafts.is_from_others(index)
        known = None if drafts.confidence is None else drafts.confidence[index][:length]
        entry.confidence = self._fit(entry, known, sampled=drafts.q_rows(index) is not None)

    def _fit(
        self, entry: Scheduled, confidence: Sequence[float] | None, *, sampled: bool
    ) -> Sequence[float] | None:
        """Makes a draft fit its request's grammar; returns the confidence of what is left of it,
        forced tokens aside.

        A draft that was sampled and is judged by its q keeps the first token that the grammar does
        not allow: to drop it would be a cut that has looked at the drawn token. The rule rejects
        it, and what comes after it is never looked at.
        """
        grammar = self._grammars.of(entry.request)
        if grammar is None:
            return confidence
        if sampled and self._needs_q:
            del entry.draft[grammar.valid(entry.draft) + 1 :]
            return confidence
        entry.draft, origin = grammar.fit(entry.draft, entry.draft_room)
        entry.forced = frozenset(i for i, drafted in enumerate(origin) if drafted is None)
        kept = [drafted for drafted in origin if drafted is not None]
        if len(kept) < len(entry.drafted) and len(origin) < entry.draft_room:
            entry.cut_by = "grammar"
        return None if confidence is None else [confidence[drafted] for drafted in kept]

    def _cut(
        self,
        scheduled: list[Scheduled],
        drafted: list[Scheduled],
        q: dict[str, list[Any]],
    ) -> None:
        """Leaves of each draft what is worth verifying. A draft that was sampled and is judged by
        its q stays whole: a cut that has seen the drawn tokens would bias the output."""
        if self._needs_q and self.lengths.anticipating:
            drafted = [entry for entry in drafted if entry.request.id not in q]
        drafted = [entry for entry in drafted if entry.draft]
        if not drafted:
            return
        cuttable = {entry.request.id for entry in drafted}
        rows = sum(e.count if e.request.id in cuttable else e.rows for e in scheduled)
        decoding = _plain_rows(scheduled)[1]
        lengths = self.lengths.verify_lengths(drafted, rows=rows, decoding=decoding)
        for entry, length in zip(drafted, lengths, strict=True):
            del entry.draft[length:]
            entry.forced = frozenset(index for index in entry.forced if index < length)

    def _key(self, name: str) -> str:
        return f"{name}@{self.drafters[name].version}"


def _plain_rows(scheduled: Iterable[Scheduled]) -> tuple[int, int]:
    """Rows of a step without any draft, and the requests that get a token from it."""
    counts = [(entry.count, entry.samples) for entry in scheduled]
    return sum(count for count, _ in counts), sum(samples for _, samples in counts)
