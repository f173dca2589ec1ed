"""The job of making a set: everything is checked before the first request is sent. Then requests
follow in the order of the plan, as many at once as the answerer takes, until the set is large
enough. A shard is written as soon as its last answer has come."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.distilled import user_sets
from paceline.dataset.folder_lock import locked
from paceline.dataset.training_set import Manifest, parquet_module
from paceline.engine.config import EngineConfig
from paceline.synth.answer import Answerer, Ask, EngineAnswerer, TargetAnswer, full_batch
from paceline.synth.app import App
from paceline.synth.ask import Asker, ItemDropped, load_target
from paceline.synth.batch_answerer import BatchAnswerer, refused_field, refused_option
from paceline.synth.endpoint import CONCURRENCY, EndpointAnswerer
from paceline.synth.folder import Collector, ItemOutcome, check_set, open_set
from paceline.synth.plan import Item, plan
from paceline.synth.source_spec import TurnSource
from paceline.synth.sources import Source, read_sources
from paceline.synth.split import SPLIT, split_rule
from paceline.synth.wire import Wire

log = logging.getLogger(__name__)
# Nobody waits for one token here: prompts may make a step as long as the token budget lets them.
STRETCH = 1e6
HOUR = 3600.0
ShowRun = Callable[["Run"], None]
Asking = Generator[Ask, TargetAnswer, ItemOutcome]


@dataclass(frozen=True, slots=True)
class SynthJob:
    """An application, its prompts, and how they are asked."""

    app: App
    sources: list[Source]
    asker: Asker
    user_data: bool = False

    def manifest(self, answers: str | None = None) -> Manifest:
        """Return the manifest of a set that is still empty."""
        app, binding = self.app, self.asker.binding
        return Manifest(
            target=self.asker.target.identity | ({} if answers is None else {"answers": answers}),
            app={
                "description": {**app.given, "size": {app.size.unit: app.size.amount}},
                "sources": [source.as_json() for source in self.sources],
                "bound": None if binding is None else binding.model_dump(mode="json"),
                SPLIT: split_rule(app, self.sources).model_dump(),
            },
            user_data=self.user_data or bool(user_sets(self.asker.target.model.path)),
        )

    def check(self, out: Path, *, restart: bool = False) -> None:
        """Raise InvalidRequest where the set cannot be made in `out`; write nothing."""
        parquet_module()
        check_set(out, self.manifest(), self.app, restart=restart)

    def own(self, **options: Any) -> Answerer:
        """Build what answers fastest in this process; `options` are EngineConfig's.

        On CUDA it is a BatchAnswerer, unless the application or `options` ask for what only an
        engine does; a line of the log says what. Elsewhere it is an engine.
        """
        config = self._config(options)
        if config.device == "cuda":
            why = self._beyond_a_batch(config)
            if why is None:
                return BatchAnswerer(self.asker.target.loaded, config)
            log.warning("the engine answers, which is slower than a batch of rows: %s", why)
        return self.engine(**options)

    def _beyond_a_batch(self, config: EngineConfig) -> str | None:
        """Return what only an engine can do, None where a BatchAnswerer does."""
        if self.asker.binding is not None:
            return "answers are bound to a grammar or tools"
        option, field = refused_option(config), refused_field(self.app.sampling.params)
        if option is not None:
            return f"{option[0]} is {option[1]}"
        return None if field is None else f"sampling.{field} is given"

    def engine(self, **options: Any) -> EngineAnswerer:
        """Build an engine of our own; `options` are EngineConfig's.

        Nobody waits for a first token here: a full batch is what counts, and drafting, which pays
        less the fuller it is, is left out unless `options` name a drafter.
        """
        config = self._config(options)
        return EngineAnswerer(full_batch(config, self.asker.target.loaded.config))

    def _config(self, options: Mapping[str, Any]) -> EngineConfig:
        default = EngineConfig()
        batch = options.get("max_num_seqs", default.max_num_seqs)
        return EngineConfig(
            **{
                "model": self.app.model,
                "drafter": None,
                "max_model_len": self.asker.target.context,
                "token_budget": max(default.token_budget, 4 * batch),
                "max_stretch": STRETCH,
                **options,
            }
        )

    def servers(
        self,
        urls: Sequence[str],
        model: str,
        *,
        api_key: str | None = None,
        concurrency: int = CONCURRENCY,
    ) -> EndpointAnswerer:
        """Connect to OpenAI-compatible servers of the target, and probe each of them. Raises
        InvalidRequest (field `url`)."""
        wire = Wire(self.asker, model)
        answerer = EndpointAnswerer(wire, urls, api_key=api_key, concurrency=concurrency)
        for ask in self.asker.probes(self.sources):
            answerer.probe(ask)
        return answerer

    def make(
        self,
        out: Path,
        answerer: Answerer,
        *,
        restart: bool = False,
        hours: float | None = None,
        progress: ShowRun | None = None,
    ) -> Collector:
        """Make the set in `out`, or go on with it. After so many `hours` no new prompt is begun,
        and the set is as large as it is then.

        Raises InvalidRequest for a folder that holds something else, CannotWrite, and errors of the
        answerer.
        """
        self.check(out, restart=restart)
        with locked(out):
            manifest = open_set(out, self.manifest(answerer.what), self.app, restart=restart)
            collector = Collector(out, manifest, self.app)
            Run(self, answerer, collector, hours).run(progress)
        return collector

    def preview(self, answerer: Answerer, count: int) -> Iterator[ItemOutcome]:
        """Yield the first `count` items of each source, answered. Nothing is written."""
        for source in self.sources:
            for item in itertools.islice(plan(self.app, [source]), count):
                steps = asking(item, self.asker, lambda item, key: False)
                try:
                    ask = next(steps)
                    while True:
                        answerer.submit(ask)
                        (answer,) = answerer.wait()
                        ask = steps.send(answer)
                except StopIteration as end:
                    yield end.value


class Run:
    """One run over a plan. `run()` returns when the set is complete, or when what was begun is
    answered and nothing more is begun: the sources are dry, or `hours` are over."""

    def __init__(
        self, job: SynthJob, answerer: Answerer, collector: Collector, hours: float | None = None
    ) -> None:
        self.asker, self.answerer, self.collector = job.asker, answerer, collector
        self._plan = itertools.islice(plan(job.app, job.sources), collector.done, None)
        self._open: dict[int, Asking] = {}
        self._waiting: deque[Ask] = deque()  # requests that no answerer has yet
        self._outcomes: dict[int, ItemOutcome] = {}
        self._next = collector.done
        self._end = math.inf if hours is None else time.monotonic() + hours * HOUR
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
        self.collector.finish()

    def _fill(self) -> None:
        while self.answerer.capacity > 0:
            if self._waiting:
                self.answerer.submit(self._waiting.popleft())
                continue
            self.collector.out_of_time = time.monotonic() >= self._end
            item = None if self.collector.out_of_time else next(self._plan, None)
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


def prepare(app: App, sources: list[Source], *, user_data: bool = False) -> SynthJob:
    """Load the target's tokenizer and digests, and compile the grammar.

    Raises InvalidRequest and ModelError.
    """
    return SynthJob(app, sources, Asker(app, load_target(app)), user_data)


def read(app: App, *, user_data: bool = False, endpoint: bool = False) -> list[Source]:
    """Read the prompts. Raises InvalidRequest for a source without any, and with `endpoint` for a
    source that servers cannot answer."""
    for index, spec in enumerate(app.sources):
        if endpoint and isinstance(spec, TurnSource):
            expected = "no such source beside --url: a server cannot be asked for a user's turn"
            raise InvalidRequest(f"sources[{index}].kind", spec.kind, expected)
    return read_sources(app.sources, app.seed, user_data)
