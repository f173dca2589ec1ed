"""The loop of a run: requests in the order of the plan, as many at once as the answerer takes,
until the set is large enough. A shard is written as soon as its last answer has come."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paceline.core import SamplingParams
from paceline.synth.answer import Answerer, Ask, TargetAnswer
from paceline.synth.app import App
from paceline.synth.ask import Asker, ItemDropped
from paceline.synth.collect import Collector, ItemOutcome, make_row
from paceline.synth.plan import Item, plan
from paceline.synth.prompts import SourcePrompt
from paceline.synth.sources import Source

ShowRun = Callable[["Run"], None]


@dataclass(slots=True)
class OpenItem:
    """An item that is being answered. `prompt` is None while the target writes the user's turn."""

    item: Item
    ask: Ask
    prompt: SourcePrompt | None


class Run:
    """One run over a plan. `run()` returns when the set is complete or the sources are dry."""

    def __init__(
        self,
        app: App,
        sources: Sequence[Source],
        asker: Asker,
        answerer: Answerer,
        collector: Collector,
    ) -> None:
        self.asker, self.answerer, self.collector = asker, answerer, collector
        self._plan = itertools.islice(plan(app, sources), collector.done, None)
        self._open: dict[int, OpenItem] = {}
        self._follow: deque[OpenItem] = deque()  # prompts that the target wrote, to be answered
        self._outcomes: dict[int, ItemOutcome] = {}
        self._next = collector.done
        self.dry = False

    def run(self, progress: ShowRun | None = None) -> None:
        """Run to the end. Raises CannotWrite, and errors of the answerer; written shards stay."""
        try:
            while not self.collector.complete:
                self._fill()
                self._fold()
                if self.collector.complete or (self.dry and not self._open):
                    break
                for answer in self.answerer.wait():
                    self._take(answer)
                self._fold()
                if progress is not None:
                    progress(self)
        finally:
            self.answerer.close()
        if self.collector.pending:
            self.collector.commit()

    # -- inside -----------------------------------------------------------------------------------

    def _fill(self) -> None:
        while self.answerer.capacity > 0:
            if self._follow:
                self._submit(self._follow.popleft())
                continue
            item = next(self._plan, None)
            if item is None:
                self.dry = True
                return
            self._begin(item)

    def _begin(self, item: Item) -> None:
        try:
            if item.prompt is None:
                self._submit(OpenItem(item, self.asker.turn(item), None))
            else:
                self._submit(self._opened(item, item.prompt))
        except ItemDropped as dropped:
            self._end(ItemOutcome(item, _key(item.prompt), None, str(dropped)))

    def _opened(self, item: Item, prompt: SourcePrompt) -> OpenItem:
        if self.collector.known(item, prompt.key):
            raise ItemDropped("duplicate_prompt")  # the collector would drop its answer
        return OpenItem(item, self.asker.ask(item, prompt), prompt)

    def _submit(self, opened: OpenItem) -> None:
        self._open[opened.item.index] = opened
        self.answerer.submit(opened.ask)

    def _take(self, answer: TargetAnswer) -> None:
        opened = self._open.pop(answer.index)
        item, prompt = opened.item, opened.prompt
        try:
            if answer.fault is not None:
                raise ItemDropped(answer.fault)
            if prompt is None:
                prompt = self.asker.written(item, answer)
                opened = self._opened(item, prompt)
                self._open[item.index] = opened
                self._follow.append(opened)
                return
            check_answer(opened.ask, answer, self.asker.target.loaded.eos_ids)
        except ItemDropped as dropped:
            self._end(ItemOutcome(item, _key(prompt), None, str(dropped)))
            return
        row = make_row(item, prompt.key, opened.ask, answer)
        self._end(ItemOutcome(item, prompt.key, row))

    def _end(self, outcome: ItemOutcome) -> None:
        self._outcomes[outcome.item.index] = outcome

    def _fold(self) -> None:
        """Hand the outcomes that have come to the collector, in the order of the plan."""
        while not self.collector.complete and self._next in self._outcomes:
            self.collector.take(self._outcomes.pop(self._next))
            self._next += 1


def _key(prompt: SourcePrompt | None) -> str | None:
    return None if prompt is None else prompt.key


def check_answer(ask: Ask, answer: TargetAnswer, eos_ids: frozenset[int]) -> None:
    """Raise ItemDropped for an empty answer, and for one that was cut before its grammar's end."""
    text = answer.ids[:-1] if answer.ids and answer.ids[-1] in eos_ids else answer.ids
    if not text:
        raise ItemDropped("empty")
    if ask.bound and answer.finish_reason != "stop":
        raise ItemDropped("grammar_cut")


@dataclass(frozen=True, slots=True)
class PreviewSample:
    """A row to look at, before any is made."""

    item: Item
    prompt: SourcePrompt | None
    prompt_ids: tuple[int, ...]
    answer: TargetAnswer | None
    params: SamplingParams | None
    reason: str | None


def preview(
    app: App, sources: Sequence[Source], asker: Asker, answerer: Answerer, count: int
) -> Iterator[PreviewSample]:
    """Yield the first `count` items of each source, answered. Nothing is written."""
    for source in sources:
        for item in itertools.islice(plan(app, [source]), count):
            yield _sampled(item, asker, answerer)


def _sampled(item: Item, asker: Asker, answerer: Answerer) -> PreviewSample:
    prompt, ask = item.prompt, None
    try:
        if prompt is None:
            prompt = asker.written(item, _answered(answerer, asker.turn(item)))
        ask = asker.ask(item, prompt)
        answer = _answered(answerer, ask)
        if answer.fault is not None:
            raise ItemDropped(answer.fault)
        check_answer(ask, answer, asker.target.loaded.eos_ids)
    except ItemDropped as dropped:
        ids, params = (ask.prompt_ids, ask.params) if ask else ((), None)
        return PreviewSample(item, prompt, ids, None, params, str(dropped))
    return PreviewSample(item, prompt, ask.prompt_ids, answer, ask.params, None)


def _answered(answerer: Answerer, ask: Ask) -> TargetAnswer:
    answerer.submit(ask)
    (answer,) = answerer.wait()
    return answer
