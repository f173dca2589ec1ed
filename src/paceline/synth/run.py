"""The loop: asks in the order of the plan, as many at once as the answerer takes, until the set is
large enough. There is no barrier anywhere: a shard is written when its last answer has come."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.core import SamplingParams
from paceline.synth.answer import Answer, Answerer, Ask
from paceline.synth.app import App
from paceline.synth.ask import Asker, Dropped
from paceline.synth.collect import Collector, Outcome, make_row
from paceline.synth.plan import Item, plan
from paceline.synth.prompts import Prompt
from paceline.synth.sources import Source

Progress = Callable[["Run"], None]


@dataclass(slots=True)
class Open:
    """An item on its way. `prompt` None: the target is still writing the user's turn."""

    item: Item
    ask: Ask
    prompt: Prompt | None


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
        self._open: dict[int, Open] = {}
        self._follow: deque[Open] = deque()  # prompts that the target wrote, to be answered
        self._outcomes: dict[int, Outcome] = {}
        self._next = collector.done
        self.dry = False

    def run(self, progress: Progress | None = None) -> None:
        """Raises CannotWrite, and whatever the answerer raises; the shards stay whole."""
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
        while self.answerer.room > 0:
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
                self._submit(Open(item, self.asker.turn(item), None))
            else:
                self._submit(self._opened(item, item.prompt))
        except Dropped as dropped:
            self._end(Outcome(item, _key(item.prompt), None, str(dropped)))

    def _opened(self, item: Item, prompt: Prompt) -> Open:
        if self.collector.known(item, prompt.key):
            raise Dropped("duplicate_prompt")  # and will be when its turn comes: save the answer
        return Open(item, self.asker.ask(item, prompt), prompt)

    def _submit(self, opened: Open) -> None:
        self._open[opened.item.index] = opened
        self.answerer.submit(opened.ask)

    def _take(self, answer: Answer) -> None:
        opened = self._open.pop(answer.index)
        item, prompt = opened.item, opened.prompt
        try:
            if answer.fault is not None:
                raise Dropped(answer.fault)
            if prompt is None:
                prompt = self.asker.written(item, answer)
                opened = self._opened(item, prompt)
                self._open[item.index] = opened
                self._follow.append(opened)
                return
            check_answer(opened.ask, answer, self.asker.target.loaded.eos_ids)
        except Dropped as dropped:
            self._end(Outcome(item, _key(prompt), None, str(dropped)))
            return
        row = make_row(item, prompt.key, opened.ask, answer)
        self._end(Outcome(item, prompt.key, row))

    def _end(self, outcome: Outcome) -> None:
        self._outcomes[outcome.item.index] = outcome

    def _fold(self) -> None:
        """Hands on, in the order of the plan, what has come."""
        while not self.collector.complete and self._next in self._outcomes:
            self.collector.take(self._outcomes.pop(self._next))
            self._next += 1


def _key(prompt: Prompt | None) -> str | None:
    return None if prompt is None else prompt.key


def check_answer(ask: Ask, answer: Answer, eos_ids: frozenset[int]) -> None:
    """Raises Dropped for an answer that is none, or that was cut before its grammar's end."""
    said = answer.ids[:-1] if answer.ids and answer.ids[-1] in eos_ids else answer.ids
    if not said:
        raise Dropped("empty")
    if ask.bound and answer.finish_reason != "stop":
        raise Dropped("grammar_cut")


@dataclass(frozen=True, slots=True)
class Sample:
    """One row to look at, before any is made."""

    item: Item
    prompt: Prompt | None
    prompt_ids: tuple[int, ...]
    answer: Answer | None
    params: SamplingParams | None
    reason: str | None


def preview(
    app: App, sources: Sequence[Source], asker: Asker, answerer: Answerer, count: int
) -> Iterator[Sample]:
    """The first `count` items of each source, answered; nothing is written."""
    for source in sources:
        alone = replace(app, mix={source.spec.part: 1.0}, languages={})
        for item in itertools.islice(plan(alone, [source]), count):
            yield _sampled(item, asker, answerer)


def _sampled(item: Item, asker: Asker, answerer: Answerer) -> Sample:
    prompt, ask = item.prompt, None
    try:
        if prompt is None:
            prompt = asker.written(item, _answered(answerer, asker.turn(item)))
        ask = asker.ask(item, prompt)
        answer = _answered(answerer, ask)
        if answer.fault is not None:
            raise Dropped(answer.fault)
        check_answer(ask, answer, asker.target.loaded.eos_ids)
    except Dropped as dropped:
        ids, params = (ask.prompt_ids, ask.params) if ask else ((), None)
        return Sample(item, prompt, ids, None, params, str(dropped))
    return Sample(item, prompt, ask.prompt_ids, answer, ask.params, None)


def _answered(answerer: Answerer, ask: Ask) -> Answer:
    answerer.submit(ask)
    (answer,) = answerer.wait()
    return answer
