"""`python -m paceline.cli.demo_autospec`: an app's traffic changes, and its drafter follows.

Everything is a `paceline` command that a user could give, printed before it runs. Exit code 0 when
no request failed, every text that was compared is the same with speculation off, four fifths of
what was lost came back, and the bad drafter was stopped; with `--weights` also, when AL is higher
than before with corpus and weights; else 1.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Strict
from rich.console import Console
from rich.text import Text

from paceline.autospec.loop.describing import status_json
from paceline.autospec.loop.journal import ChangeOrigin, ChangeRecord, ChangeStage, LoopJournal
from paceline.autospec.store import DrafterStore
from paceline.bench.load.server_process import ServerProcess
from paceline.cli.demo import MODEL, START_SECONDS, WIDTH
from paceline.cli.demo_report import ShopPeriods, compare_texts, report
from paceline.cli.demo_stages import minutes, say
from paceline.cli.demo_traffic import AFTER, APP, BEFORE, TrafficLoad, mean_length
from paceline.cli.options import run_alone
from paceline.core import PacelineError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.signals import die_with_parent
from paceline.drafters import shipped

FIRST_SECONDS = 60.0  # of traffic before the first corpus
CALM_DAYS = 2.5  # of the policy, before the traffic changes
MEASURED_SECONDS = 120.0
LONGEST_SECONDS = 420.0  # that the demo waits for one thing
TRAINING_SECONDS = 1200.0  # for weights and their canary
POLICY = """\
# A day of this policy is a minute, and what it waits for is little: for a demonstration.
drift:
  day_seconds: 60
  reference_days: 3
  least_reference_days: 2
  week_days: 1          # nothing is known of weekends, and there are none
  days: 1               # a day must show a fall
  recent_hours: 24
  sigmas: 3
  least_requests: 30
  covered: 0.6
retrain: {cool_down_days: 0, per_week: 50, gpu_hours_per_day: 1000}
regional: {share: 0.35}
corpus: {days: 0.0007, held_out: 0.1, least_answers: 20, retry_hours: 0.01}  # of a minute
canary:
  steps: [50, 100]
  least_requests: 15
  tuned_requests: 40
  tpot: 0.15            # so few requests cannot show 5%
  least_hours: 0
  cycle_hours: 0
"""
NO_WEIGHTS = "training: {template: null}\n"
WEIGHTS = """\
training: {{template: "{template}", init: "{init}", days: 0.003, least_answers: 60,
  aim: 1.2}}  # a corpus alone may win back all that was lost
"""
JOB = """\
command: ["{python}", -m, paceline, train, "{data}", --out, "{out}", --model, "{model}", --init,
  "{init}", --steps, "24", --texts, "4", --micro, "4", --anchors, "16", --eval-texts, "8",
  --eval-anchors, "8"]
best: ["{out}/drafter", "{out}/drafter.old"]
nice: 19
"""
DAY_SECONDS = 60.0
SEASON = " season: nothing. "  # in a line that says so; in a day of a minute there are many of them
Folder = Annotated[Path, Strict(False)]


@checked
class DemoAutospecCommand:
    """Show how drafters follow an app whose traffic changes, in a time-compressed day.

    Serves a real model, sends an app's traffic, lets half of it turn German and all of it take
    another schema, and watches autospec adapt by a corpus, and with --weights by weights after it,
    try them and promote them. Then somebody pushes a bad drafter. Exit code 0 when all went well,
    else 1.
    """

    out: Folder | None = about("folder for everything it makes", None, "a temporary one")
    rate: Annotated[float, Strict(False)] = about("requests in a second", 3.5)
    weights: bool = about(
        "train weights as well, for what the corpus has not won back; takes about 20 minutes",
        False,
    )

    def run(self) -> int:
        """Run everything in order. Raises PacelineError where something does not come up."""
        from paceline.models.catalog import pull

        pull(MODEL)
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, WIDTH)
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            return AutospecStory(console, self.out.resolve(), self.rate, self.weights).tell()
        with tempfile.TemporaryDirectory(prefix="paceline-demo-") as scratch:
            return AutospecStory(console, Path(scratch), self.rate, self.weights).tell()


@dataclass
class AutospecStory:
    """The story, chapter by chapter. `began` is when it began, in seconds since the epoch."""

    console: Console
    folder: Path
    rate: float
    weights: bool = False
    began: float = field(default_factory=time.time)

    def tell(self) -> int:
        """Tell it, and return the exit code."""
        os.environ["PACELINE_ADMIN_KEY"] = secrets.token_urlsafe(16)
        arguments = (
            MODEL, "--drafter", "suffix", "--traces", f"{self.traces}", "--traces-tokens",
            "--autospec", f"{self.store}",
        )  # fmt: skip
        self._chapter("a server with traces, and an app's traffic", ["serve", *arguments])
        server = ServerProcess(arguments, log=self.folder / "server.log")
        try:
            server.wait_until_healthy(START_SECONDS)
            say(self.console, f"To watch it: {server.url}/#autospec")
            load = TrafficLoad(server.url, MODEL, BEFORE, self.rate)
            try:
                periods = self._serve(server, load)
            finally:
                load.close()
            texts = compare_texts(server.url, load.answers, periods)
            code = report(self.console, periods, load.answers, texts)
        finally:
            clean = server.stop()
        say(self.console, "server stopped cleanly" if clean else "server did NOT stop cleanly")
        say(self.console, f"{minutes(time.time() - self.began)} in all")
        return code if clean else 1

    @property
    def traces(self) -> Path:
        return self.folder / "traces"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    # -- chapters ----------------------------------------------------------------------------------

    def _serve(self, server: ServerProcess, load: TrafficLoad) -> ShopPeriods:
        """Tell what happens while traffic comes; return when."""
        self._wait(load, "traffic comes", lambda: False, FIRST_SECONDS)
        say(self.console, "\nA corpus of its answers becomes the app's drafter, by hand:", "bold")
        corpus = self.folder / "corpus"
        self._run("corpus", "build", f"{corpus}", f"{self.traces}", "--model", MODEL)
        store = ("--store", f"{self.store}")
        self._run("drafters", "add", "base", f"suffix,corpus={corpus / 'v1'}", *store)
        self._run("drafters", "promote", "base", "--to", "live", *store, "--server", server.url)
        policy = self.write_policy()
        words = (
            "autospec", "run", f"{self.store}", "--traces", f"{self.traces}", "--server",
            server.url, "--model", MODEL, "--policy", f"{policy}", "--every", "5",
        )  # fmt: skip
        self._chapter("autospec learns what is usual; a day of its policy is a minute", words)
        say(self.console, "(its lines about mere season are left out here)", "dim")
        with self._background(words):
            return self._change(load)

    def _change(self, load: TrafficLoad) -> ShopPeriods:
        """Let the traffic change, and wait for what autospec does."""
        calm = CALM_DAYS * DAY_SECONDS
        self._wait(load, "as usual", lambda: self._is_known(load), LONGEST_SECONDS, least=calm)
        self._chapter("half of the app's users write German now, and its answers have another form")
        periods = ShopPeriods(changed=time.time())
        load.traffic = AFTER
        cohorts = {f"{MODEL}|{APP}|{language}|none" for language in ("en", "de")}
        self._wait(load, "adapting", lambda: cohorts <= self._live_cohorts(), LONGEST_SECONDS)
        periods.recovered = time.time()
        periods.changes = self._adapted()
        if self.weights:
            self._train(load, periods)
        self._wait(load, "adapted", lambda: False, MEASURED_SECONDS)
        periods.measured = time.time()
        self._run("autospec", "status", f"{self.store}")
        self._push(load, periods)
        self._run("autospec", "explain", f"{self.store}", "--limit", "4")
        return periods

    def _train(self, load: TrafficLoad, periods: ShopPeriods) -> None:
        """Wait until new weights, which learn from what the app is asked now, are tried."""
        self._chapter("what the corpora have not won back, weights learn")
        periods.weights = True

        def weights() -> ChangeRecord | None:
            trained = [c for c in self._adapted() if c.origin is ChangeOrigin.WEIGHTS]
            return trained[-1] if trained else None  # the first one; another cohort's may follow

        def is_over() -> bool:
            found = weights()
            return found is not None and found.stage.is_over

        self._wait(load, "with corpora", lambda: weights() is not None, LONGEST_SECONDS)
        if weights() is not None:
            self._wait(load, "training and trying", is_over, TRAINING_SECONDS)
        trained = weights()
        if trained is not None and not trained.stage.is_over:
            self._end_trial(load, trained.version, is_over)
            trained = weights()
        if trained is not None:  # it may have begun before the last corpus was live
            earlier = [change for change in periods.changes if change.id != trained.id]
            periods.changes = [trained, *earlier]

    def _end_trial(self, load: TrafficLoad, version: str, is_over: Callable[[], bool]) -> None:
        """End a canary that has no verdict by hand: what it gains is too little to be sure of."""
        say(self.console, "\nNo verdict: so few requests cannot tell. Somebody ends it:", "bold")
        self._run("drafters", "retire", version, "--store", f"{self.store}")
        self._wait(load, "ending it", is_over, LONGEST_SECONDS)

    def _push(self, load: TrafficLoad, periods: ShopPeriods) -> None:
        """Let somebody push a bad drafter for the cohort that autospec made one for."""
        self._chapter("somebody pushes a bad drafter: look-ups without the app's answers")
        live = self._live_versions().get(f"{MODEL}|{APP}|en|none", "base")
        store, periods.pushed = ("--store", f"{self.store}"), time.time()
        self._run("drafters", "add", "bad", "suffix", "--parent", live, *store)
        self._run("drafters", "promote", "bad", "--to", "canary", *store)
        self._wait(load, "trying it", lambda: self._verdict() is not None, LONGEST_SECONDS)
        periods.verdict = self._verdict()

    # -- what the store says ---------------------------------------------------------------------

    def _changes(self) -> list[ChangeRecord]:
        with DrafterStore(self.store) as store:
            return LoopJournal(store).changes()

    def _adapted(self) -> list[ChangeRecord]:
        """Return the changes that autospec decided on."""
        return [c for c in self._changes() if c.origin is not ChangeOrigin.PUSHED]

    def _verdict(self) -> ChangeRecord | None:
        """Return how the pushed drafter's change ended; None while it lasts."""
        pushed = (c for c in self._changes() if c.version == "bad" and c.stage.is_over)
        return next(pushed, None)

    def _live_versions(self) -> dict[str, str]:
        with DrafterStore(self.store) as store:
            return store.live()

    def _live_cohorts(self) -> set[str]:
        return {change.cohort for change in self._changes() if change.stage is ChangeStage.LIVE}

    def _is_known(self, load: TrafficLoad) -> bool:
        """Return whether autospec knows what is usual for the app."""
        with DrafterStore(self.store) as store:
            rows = status_json(store)["cohorts"]
        return any(row.get("usual") and f"|{APP}|en|" in row["cohort"] for row in rows)

    def write_policy(self) -> Path:
        """Write the policy of a short day. Training begins from the shipped drafter."""
        path, training = self.folder / "policy.yaml", NO_WEIGHTS
        if self.weights:
            job = self.folder / "job.yaml"
            job.write_text(JOB, "utf-8")
            training = WEIGHTS.format(template=job, init=shipped.FOLDERS / MODEL)
        path.write_text(POLICY + training, "utf-8")
        return path

    # -- how it is told --------------------------------------------------------------------------

    def _chapter(self, title: str, words: Sequence[str] = ()) -> None:
        self.console.print()
        self.console.rule(Text(f"{self._clock()} {title}", style="bold"), align="left")
        if words:
            say(self.console, f"$ paceline {shlex.join(words)}", "cyan")

    def _run(self, *words: str) -> None:
        """Run a command and show it. Raises PacelineError where it fails."""
        say(self.console, f"$ paceline {shlex.join(words)}", "cyan")
        done = subprocess.run(
            [sys.executable, "-m", "paceline.cli", *words],
            check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        say(self.console, done.stdout.rstrip())
        if done.returncode != 0:
            raise PacelineError(f"`paceline {words[0]}` ended with exit code {done.returncode}")

    @contextmanager
    def _background(self, words: Sequence[str]) -> Iterator[None]:
        """Run a command beside the story, and show its lines as they come."""
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli", *words],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        assert process.stdout is not None
        lines = process.stdout

        def show() -> None:
            for line in lines:
                if SEASON not in line:
                    say(self.console, f"autospec | {line.rstrip()}", "magenta")

        reader = threading.Thread(target=show, daemon=True)
        reader.start()
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(LONGEST_SECONDS)
            reader.join()
        if code != 0:
            raise PacelineError(f"`paceline autospec run` ended with exit code {code}")

    def _wait(
        self, load: TrafficLoad, what: str, done: Callable[[], bool], longest: float,
        least: float = 0.0,
    ) -> None:  # fmt: skip
        """Wait until something is done, or for so many seconds; say now and then what AL is."""
        begun = told = time.time()
        while (age := time.time() - begun) < longest and (age < least or not done()):
            time.sleep(1.0)
            if time.time() - told >= 20.0:
                say(self.console, f"{self._clock()} {what}: {_lengths(load, told)}", "dim")
                told = time.time()

    def _clock(self) -> str:
        seconds = round(time.time() - self.began)
        return f"{seconds // 60:2d}:{seconds % 60:02d}"


def _lengths(load: TrafficLoad, since: float) -> str:
    """Return the AL of each language since a time, and how many requests there were."""
    parts = []
    for language in ("en", "de"):
        answers = [a for a in load.between(since) if a.language == language]
        al = mean_length(answers)
        if answers:
            parts.append(f"{language} {'nothing drafted' if al is None else f'AL {al:.2f}'} "
                         f"({len(answers)} requests)")  # fmt: skip
    return ", ".join(parts) or "no requests"


def main(argv: Sequence[str] | None = None) -> int:
    return run_alone("paceline.cli.demo_autospec", DemoAutospecCommand, argv)


if __name__ == "__main__":
    sys.exit(main())
