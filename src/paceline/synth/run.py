"""The loop of a run: requests in the order of the plan, as many at once as the answerer takes,
until the set is large enough. A shard is written as soon as its last answer has come."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence

from paceline.synth.answer import Answerer, Ask, TargetAnswer
from paceline.synth.app import App
from paceline.synth.ask import Asker, ItemDropped
from paceline.synth.folder import Collector, ItemOutcome
from paceline.synth.plan import Item, plan
from paceline.synth.sources import Source

ShowRun = Callable[["Run"], None]
Asking = Generator[Ask, TargetAnswer, ItemOutcome]


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
        self._open: dict[int, Asking] = {}
        self._waiting: deque[Ask] = deque()  # requests that no answerer has yet
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
                    self._advance(answer.index, answer)
                self._fold()
                if progress is not None:
                    progress(self)
        finally:
            self.answerer.close()
        if self.collector.pending:
            self.collector.commit()

    def _fill(self) -> None:
        while self.answerer.capacity > 0:
            if self._waiting:
                self.answerer.submit(self._waiting.popleft())
                continue
            item = next(self._plan, None)
            if item is None:
                self.dry = True
                return
            self._open[item.index] = asking(item, self.asker, self.collector.known)
            self._advance(item.index)

    def _advance(self, index: int, answer: TargetAnswer | None = None) -> None:
        """Take an item from its answer to its next request, or to its outcome."""
        steps = self._open[index]
        try:
            self._waiting.append(next(steps) if answer is None else steps.send(answer))
        except StopIteration as end:
            del self._open[index]
            self._outcomes[index] = end.value

    def _fold(self) -> None:
        """Hand the outcomes that have come to the collector, in the order of the plan."""
        while not self.collector.complete and self._next in self._outcomes:
            self.collector.take(self._outcomes.pop(self._next))
            self._next += 1


def asking(item: Item, asker: Asker, known: Callable[[Item, str], bool]) -> Asking:
    """Yield the requests of an item, each after the answer to the one before: the user's turn,
    where the target writes it, and then the answer. Return the outcome.

    `known` tells whether the set has a prompt already: its answer would be dropped.
    """
    prompt, ask = item.prompt, None
    try:
        if prompt is None:
            prompt = asker.written(item, (yield asker.turn(item)))
        if known(item, prompt.key):
            raise ItemDropped("duplicate_prompt")
        ask = asker.ask(item, prompt)
        answer = yield ask
        asker.check(ask, answer)
    except ItemDropped as dropped:
        return ItemOutcome(item, prompt, ask, reason=str(dropped))
    return ItemOutcome(item, prompt, ask, answer)


def preview(
    app: App, sources: Sequence[Source], asker: Asker, answerer: Answerer, count: int
) -> Iterator[ItemOutcome]:
    """Yield the first `count` items of each source, answered. Nothing is written."""
    for source in sources:
        for item in itertools.islice(plan(app, [source]), count):
            steps = asking(item, asker, lambda item, key: False)
            try:
                ask = next(steps)
                while True:
                    answerer.submit(ask)
                    (answer,) = answerer.wait()
                    ask = steps.send(answer)
            except StopIteration as end:
                yield end.value
