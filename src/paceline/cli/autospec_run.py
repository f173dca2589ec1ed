"""`paceline autospec run`: the loop over a store, a folder of traces and a running server."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict

from paceline.cli.autospec import read_policy
from paceline.cli.autospec_serving import ENDPOINT_HELP, steered_client
from paceline.cli.option import Argument
from paceline.cli.options import File
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, Flag
from paceline.core.signals import ending_on_signals

if TYPE_CHECKING:
    from paceline.autospec.loop import Autospec, LoopSettings
    from paceline.autospec.server_client import DrafterClient
    from paceline.autospec.store import DrafterStore

Store = Annotated[Path, Strict(False), Argument(positional=True, metavar="STORE")]
STORE_HELP = "folder of the store of drafters, as `paceline drafters --store` makes it"
PURPOSE = "paceline autospec run"
REFUSED = (400, 401, 403, 404, 405)  # statuses of a server that will not change its mind


@checked
class AutospecRunCommand:
    """Watch a server's traces, decide, adapt its drafters, try them, and swap them in.

    A turn every few seconds compares each cohort's acceptance with its reference, builds a corpus
    where that pays, scores it, loads it into the server, and tries it on a growing share of the
    requests. Versions that somebody promoted to canary are tried too. Each decision and each step
    of a change is printed once. A process that is killed at any moment leaves nothing half done:
    the next one goes on from there. SIGTERM and Ctrl-C end it after the turn.
    """

    store: Store = about(STORE_HELP)
    traces: Annotated[Path, Strict(False), Flag(metavar="FOLDER")] = about(
        "folder of the server's traces, as `paceline serve --traces` writes them"
    )
    server: Annotated[str, Flag(metavar="URL")] | None = about(
        "the server whose drafters it loads and routes to, as http://127.0.0.1:8000", None
    )
    endpoint: Annotated[str, Flag(metavar="FILE|FOLDER")] | None = about(ENDPOINT_HELP, None)
    admin_key: str | None = about(
        "the server's admin key; set PACELINE_ADMIN_KEY instead, which a list of processes does "
        "not show",
        None,
    )
    model: Annotated[str, Flag(metavar="NAME")] | None = about(
        "the target, as `serve` takes it: new drafters are scored with it before anybody gets "
        "them, and weights are trained for it",
        None,
        "nothing is trained or scored; the canary alone judges",
    )
    policy: File | None = about("policy file (YAML)", None, "the defaults")
    dry_run: bool = about(
        "print what it would decide and do now, and change neither store nor server nor disk", False
    )
    once: bool = about("do one turn and end", False)
    every: Annotated[float, Between(0.1, 86400.0), Flag(metavar="SECONDS")] = about(
        "seconds between turns", 30.0
    )

    def run(self) -> int:
        from paceline.autospec.store import DrafterStore, StoreLease

        client = steered_client(self.server, self.endpoint, self.admin_key)
        settings = self._settings()
        if not self.traces.is_dir():
            expected = "a folder of `paceline serve --traces`"
            raise InvalidRequest("traces", str(self.traces), expected)
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
        if self.dry_run:
            with DrafterStore(self.store.expanduser(), update=False) as store:
                return self._plan(store, settings, client)
        with DrafterStore(self.store.expanduser()) as store, StoreLease(store, PURPOSE):
            return self._turn(store, settings, client)

    def _settings(self) -> LoopSettings:
        """Return how the loop decides and scores. Raises InvalidRequest and ModelError."""
        from paceline.autospec.loop import LoopSettings

        policy = read_policy(self.policy)
        if self.model is None:
            return LoopSettings(policy)
        from paceline.autospec.loop.scorer import ReplayScorer
        from paceline.autospec.store import TargetIdentity
        from paceline.drafters.corpus import corpus_target
        from paceline.models.loader import load_model

        told = corpus_target(load_model(self.model))
        target = TargetIdentity(
            name=told["name"], tokenizer=told["tokenizer_sha256"], template=told["template"]
        )
        return LoopSettings(policy, ReplayScorer(self.model), target, self.model)

    def _turn(self, store: DrafterStore, settings: LoopSettings, client: DrafterClient) -> int:
        """Do turns until a signal, or one."""
        from paceline.autospec.background_loads import BackgroundLoads
        from paceline.autospec.loop import Autospec, LoopNews
        from paceline.autospec.loop.observe import TraceFolder
        from paceline.autospec.server_client import ServerRefused
        from paceline.autospec.serving import PacelineServing

        serving = PacelineServing(client) if self.once else BackgroundLoads(PacelineServing(client))
        loop = Autospec(store, TraceFolder(self.traces), serving, settings)
        news = LoopNews(loop.journal)
        try:
            client.drafters()
        except ServerRefused as error:  # one that is not there yet may come
            if self.once or error.status in REFUSED:
                raise
        self._say_hello(loop)
        if self.once:
            try:
                loop.tick()
            finally:
                tell(news.lines())
            return 0
        ended = threading.Event()
        with ending_on_signals(ended.set):
            loop.run(self.every, ended, lambda: tell(news.lines()))
        tell(["ended; the store has all that was done"])
        return 0

    def _plan(self, store: DrafterStore, settings: LoopSettings, client: DrafterClient) -> int:
        """Print what would be decided and done."""
        from paceline.autospec.loop import Autospec, reconcile
        from paceline.autospec.loop.news import change_line, sentences
        from paceline.autospec.loop.observe import TraceFolder
        from paceline.autospec.serving import PlannedServing

        serving = PlannedServing(client)
        loop = Autospec(store, TraceFolder(self.traces), serving, settings)
        for decision in loop.decided():
            print(f"would decide: {sentences(decision)}")
        for change in loop.journal.active():
            print(f"would go on: {change_line(change)}")
        missing = reconcile(serving, store)
        for step in serving.steps:
            print(f"would tell the server: {step}")
        for name, reason in missing.refused.items():
            print(f"cannot be loaded: {name}: {reason}")
        for name, reason in missing.waiting.items():
            print(f"waits for room: {name}: {reason}")
        print("dry run: nothing was changed")
        return 0

    def _say_hello(self, loop: Autospec) -> None:
        scored = f"scores with {self.model}" if self.model else "nothing is scored without --model"
        policy = self.policy or "the defaults"
        steered = self.server or f"the endpoint {self.endpoint}"
        lines = [f"autospec watches {self.traces} and steers {steered}; {scored}; policy: {policy}"]
        if not loop.store.live():
            lines.append(
                "no version is live in the store, so nothing can be replaced: `paceline drafters "
                "add` the server's drafter, and `promote` it `--to live`"
            )
        tell(lines)


def tell(lines: list[str]) -> None:
    """Print lines with the time."""
    now = time.strftime("%H:%M:%S")
    for line in lines:
        print(f"{now} {line}", flush=True)
