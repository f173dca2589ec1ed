"""`paceline synth`: a training set out of public prompts and the target's own answers."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict
from rich.console import Console

from paceline.bench.load.client import served_model
from paceline.cli import synth_show
from paceline.cli.options import Argument, Count, Only, refuse_engine_options
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Several
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.synth.answer import Answerer
    from paceline.synth.app import App
    from paceline.synth.job import SynthJob

ENGINE = EngineConfig(drafter=None)
ENGINE_OPTIONS = (
    "dtype", "device", "backend", "quantize", "threads", "max_num_seqs", "kv_memory", "drafter",
)  # fmt: skip


@checked
class SynthCommand:
    """Make a training set: public prompts, answered by the target.

    Answers the prompts that app.yaml describes, as the application would, and writes token ids with
    loss spans as Parquet. Run it again to go on where it stopped.
    """

    app: Annotated[Path, Strict(False), Argument(positional=True, metavar="APP.yaml")] = about(
        "the application"
    )
    out: (
        Annotated[Path, Strict(False), Argument(flags=("-o", "--out"), metavar="FOLDER")] | None
    ) = about("where the set goes", None)
    model: Annotated[str | None, Argument(flags=("-m", "--model"))] = about(
        "the target, instead of the one that app.yaml names", None
    )
    rows: Count | None = about("rows to make, instead of app.yaml's size", None)
    preview: Count | None = about("answer N prompts of each source, write nothing", None)
    restart: bool = about("delete what FOLDER holds of a set", False)
    user_data: Annotated[bool, Argument(action=argparse.BooleanOptionalAction)] = about(
        "allow sources that are marked as users' own data", False
    )
    json: bool = about("print what was done as JSON", False)
    url: Annotated[tuple[str, ...], Several] = about(
        "an OpenAI-compatible server of the target, in place of an engine of our own, as "
        "http://10.0.0.1:8000; repeatable",
        (),
    )
    served_model: str | None = about("with --url: the target's id there", None)
    api_key: str | None = about("with --url: the servers' API key", None)
    concurrency: Count | None = about("with --url: requests in flight over all servers", None, "64")
    engine: Annotated[EngineConfig, Only(ENGINE_OPTIONS)] = ENGINE

    def __post_init__(self) -> None:
        if (self.out is None) == (self.preview is None):
            raise InvalidRequest("out", self.out, "a folder for the set, or --preview instead")
        if self.url:
            refuse_engine_options(self.engine, ENGINE)
            return
        for field in ("served_model", "api_key", "concurrency"):
            if getattr(self, field) is not None:
                raise InvalidRequest(field, getattr(self, field), "--url beside it")

    def run(self) -> int:
        from paceline.synth.job import prepare, read

        app = self._load_app()
        sources = read(app, user_data=self.user_data, endpoint=bool(self.url))
        console = Console(highlight=False, stderr=self.json)
        console.print(synth_show.source_table(app, sources))
        job = prepare(app, sources, user_data=self.user_data)
        if self.out is not None:
            job.check(self.out, restart=self.restart)
        answerer = self._answerer(job)
        if self.out is None:
            synth_show.preview(console, job, answerer, self.preview or 0)
            return 0
        with synth_show.progress_bar(app) as progress:
            collector = job.make(self.out, answerer, restart=self.restart, progress=progress)
        if self.json:
            counts = collector.manifest.counts
            summary = {"set": str(self.out), "complete": collector.complete, "counts": counts}
            print(json.dumps(summary | answerer.speed().as_json()))
        else:
            synth_show.report(console, self.out, collector, answerer.speed())
        return 0

    def _load_app(self) -> App:
        from paceline.synth.app import load_app

        app = load_app(self.app)
        if self.model is not None:
            app = app.model_copy(update={"model": self.model})
        return app if self.rows is None else app.with_size(self.rows)

    def _answerer(self, job: SynthJob) -> Answerer:
        """Return what answers. Raises InvalidRequest or ModelError where nobody could."""
        if not self.url:
            return job.engine(**{name: getattr(self.engine, name) for name in ENGINE_OPTIONS})
        model = self.served_model or asyncio.run(served_model(self.url[0], self.api_key))
        limit = {} if self.concurrency is None else {"concurrency": self.concurrency}
        return job.servers(self.url, model, api_key=self.api_key, **limit)
