"""The job of making a set: everything is checked before the first request is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.training_set import Manifest, parquet_module
from paceline.engine.config import EngineConfig
from paceline.synth.answer import Answerer, EngineAnswerer, full_batch
from paceline.synth.app import App
from paceline.synth.ask import Asker, load_target
from paceline.synth.endpoint import CONCURRENCY, EndpointAnswerer
from paceline.synth.folder import Collector, check_set, locked, open_set
from paceline.synth.run import Run, ShowRun
from paceline.synth.source_spec import TurnSource
from paceline.synth.sources import Source, read_sources
from paceline.synth.wire import Wire

# Nobody waits for one token here: prompts may make a step as long as the token budget lets them.
STRETCH = 1e6


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
            },
            user_data=self.user_data,
        )

    def check(self, out: Path, *, restart: bool = False) -> None:
        """Raise InvalidRequest where the set cannot be made in `out`; write nothing."""
        parquet_module()
        check_set(out, self.manifest(), self.app, restart=restart)

    def engine(self, **options: Any) -> EngineAnswerer:
        """Build an engine of our own; `options` are EngineConfig's.

        Nobody waits for a first token here: a full batch is what counts, and drafting, which pays
        less the fuller it is, is left out unless `options` name a drafter.
        """
        default = EngineConfig()
        batch = options.get("max_num_seqs", default.max_num_seqs)
        config = EngineConfig(
            **{
                "model": self.app.model,
                "drafter": None,
                "max_model_len": self.asker.target.context,
                "token_budget": max(default.token_budget, 4 * batch),
                "max_stretch": STRETCH,
                **options,
            }
        )
        return EngineAnswerer(full_batch(config, self.asker.target.loaded.config))

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
        progress: ShowRun | None = None,
    ) -> Collector:
        """Make the set in `out`, or go on with it.

        Raises InvalidRequest for a folder that holds something else, CannotWrite, and errors of the
        answerer.
        """
        self.check(out, restart=restart)
        with locked(out):
            manifest = open_set(out, self.manifest(answerer.what), self.app, restart=restart)
            collector = Collector(out, manifest, self.app)
            Run(self.app, self.sources, self.asker, answerer, collector).run(progress)
        return collector


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
