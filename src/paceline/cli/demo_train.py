"""`python -m paceline.cli.demo_train`: a drafter for an application, from a description to serving.

Every stage is a `paceline` command that a user could give, printed before it runs. Run it again and
finished stages are not repeated. Exit code 0 when all is done and every text is the same, else 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Strict
from rich.console import Console

from paceline.bench.prompts import BenchPrompt
from paceline.bench.report import tables
from paceline.bench.report.words import number
from paceline.cli.demo import MODEL, WIDTH, compare_served
from paceline.cli.demo_stages import Stage, headline, minutes, run_stages, say, seconds_of
from paceline.cli.demo_winner import SUFFIX, Contender, contender, contest_table, winner
from paceline.cli.options import run_alone
from paceline.core import PacelineError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between
from paceline.dataset.run_log import read_log
from paceline.dataset.training_set import read_manifest
from paceline.drafters import shipped
from paceline.drafters.corpus_folder import corpus_versions
from paceline.evaluate.result import DRAFTER, POLICY, Evaluation, SetResult
from paceline.synth.app import App, load_app

APP = Path("apps/support.yaml")
NAME = "support"
# Long enough for the answers, which are calls, and gentle enough to leave alone what was learnt
# before: at the rates of a drafter from random weights, other text loses more than 5%.
RECIPE = (
    "--block 16 --texts 8 --anchors 16 --lr 5e-4 --matrix-lr 0.005 --eval-every 50 --save-every 50"
)
MEASURING = 8.0  # minutes that comparing drafters takes, whatever the set and the training take
SET_SHARE, TRAINING_SHARE = 0.3, 0.55  # of the other minutes; stages also have to start and end
RUNS = 3
CHAPTERS = 7
# The sets that decide: phrases that nobody trained on, and customers that somebody else made up.
DECISIVE = (NAME, "foreign")
# Customers that no training set has seen.
REQUESTS = {
    "late": "Hello! My parcel KZ-20417 was due last Friday. Where is it now?",
    "broken": "Hi, the toaster of BX-71093 arrived broken and I want my money back. Thanks.",
    "moved": "I moved, so please send order AT-55820 to 14 Garden Row, Lund.",
    "cancel": "Please cancel RX-30968, I found it cheaper in another shop.",
}


Folder = Annotated[Path, Strict(False)]


@checked
class DemoPlan:
    """Make a drafter for an application, from a description to serving.

    Every stage is a `paceline` command that a user could give, printed before it runs. Run it again
    and finished stages are not repeated. Exit code 0 when all is done and every text is the same,
    else 1.
    """

    out: Folder = about("where everything goes", Path("demo-train"))
    drafter: Folder = about("the drafter to begin from", shipped.FOLDERS / MODEL)
    minutes: Annotated[float, Between(MEASURING, open=True)] = about(
        "minutes for all of it: about 8 for measuring, and 30% of the others for the set and 55% "
        "for the training",
        20.0,
    )
    rows: int = about("texts of the training set, at most", 5000)
    prompts: int = about("evaluated of each set", 6)
    tokens: int = about("longest answer evaluated", 64)

    @property
    def set(self) -> Path:
        return self.out / NAME

    @property
    def trained(self) -> Path:
        return self.out / "run" / "drafter"

    @property
    def corpus(self) -> Path:
        return self.out / "corpus"

    @property
    def hybrid(self) -> str:
        """Look-ups and the trained drafter together, as `--drafter` takes them."""
        return f"hybrid:{self.trained}"

    def hours(self, share: float) -> str:
        """Return a share of the minutes that measuring leaves, in hours, as a command takes it."""
        return f"{share * (self.minutes - MEASURING) / 60:.3g}"

    def report(self, when: str) -> Path:
        return self.out / f"{when}.html"

    def run(self) -> int:
        """Run everything in order. Return the exit code.

        Raises PacelineError where it cannot begin, or the server does not come up.
        """
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(console.width, WIDTH)
        if not APP.is_file():
            raise PacelineError(f"{APP} is not here: start it in the folder of the repository")
        if not (self.drafter / "config.json").is_file():
            raise PacelineError(
                f"no drafter in {self.drafter} to begin from; name one with --drafter"
            )
        say(console, f"A drafter for {APP}, a shop's support agent that answers in calls.", "bold")
        say(console, "Nobody's data is used. Stop it whenever you like: run again, it goes on.")
        chapters = stages(self)
        try:
            code = run_stages(console, self.out, chapters, CHAPTERS)
            if code != 0:
                return code
            chosen = decide(console, self)
            code = serve(console, self, load_app(APP), chosen)
        except KeyboardInterrupt:
            say(console, "\nstopped; `make demo-train` goes on from here")
            raise
        epilogue(console, self, [stage.name for stage in chapters])
        return code


# -- the stages ------------------------------------------------------------------------------------


def stages(plan: DemoPlan) -> list[Stage]:
    """Return the stages before the drafter serves."""
    folder, begin = str(plan.set), shown(plan.drafter)
    return [
        Stage(
            "synth",
            "a training set, out of the application's description",
            "The target answers made-up customers under the application's own prompt and grammar. "
            "Some plain chat is added, so that the drafter does not forget the rest.",
            ("synth", str(APP), "--out", folder, "--rows", str(plan.rows),
             "--hours", plan.hours(SET_SHARE)),
            plan.set / "manifest.json",
            lambda: _set_lines(plan),
        ),
        _evaluation(
            plan,
            "before",
            "what the drafter that is there already is worth here",
            "It was trained for chat in general. Each prompt is answered without and with it; the "
            "text is the same, only the time is not.",
            begin,
        ),
        Stage(
            "train",
            "training, from that drafter on",
            "It learns to say at once what the target says one by one. AL is how many tokens a "
            "round would commit, on texts that it does not learn from.",
            ("train", folder, "--out", str(plan.out / "run"), "--init", begin, *RECIPE.split(),
             "--hours", plan.hours(TRAINING_SHARE)),
            plan.trained / "config.json",
            lambda: _training_lines(plan),
        ),
        _evaluation(
            plan,
            "after",
            "what it is worth now, and whether anything else got slower",
            "The same prompts again, in the engine that will serve it.",
            str(plan.trained),
            "--before", str(plan.report("before").with_suffix(".json")), "--card",
        ),
        _evaluation(
            plan,
            "together",
            "look-ups alone, and look-ups and the drafter together",
            "Look-ups copy what was said before, at next to no cost. Here they remember answers of "
            "the training set, as they would after a while of serving.",
            plan.hybrid,
            "--warm",
            sets=_sets(plan)[: len(DECISIVE)],
        ),
        Stage(
            "corpus",
            "the answers that look-ups begin with",
            "So that a server need not be warmed: a corpus of the answers that were trained on.",
            ("corpus", "build", str(plan.corpus), folder, "--model", MODEL, "--days", "365"),
            plan.corpus,
            lambda: [],
        ),
    ]  # fmt: skip


def _sets(plan: DemoPlan) -> tuple[str, ...]:
    """Return the sets of an evaluation: those of DECISIVE first."""
    return (
        f"{NAME}={plan.set}:on_task",
        f"foreign={plan.set}:foreign",
        f"chat={plan.set}:replay",
        f"code={plan.set}:neighbour",
        "demo",
    )


def _evaluation(
    plan: DemoPlan,
    when: str,
    title: str,
    why: str,
    drafter: str,
    *more: str,
    sets: Sequence[str] | None = None,
) -> Stage:
    sets = _sets(plan) if sets is None else sets
    sizes = ("--temperatures", "0", "--prompts", str(plan.prompts), "--tokens", str(plan.tokens))
    command = ("evaluate", MODEL, drafter, *sets, *sizes, "--out", str(plan.report(when)), *more)
    made_file = plan.report(when).with_suffix(".json")
    return Stage(when, title, why, command, made_file, lambda: _evaluation_lines(plan, when))


def shown(path: Path) -> str:
    """Return the shortest form of a path that can be copied from here."""
    absolute = path.resolve()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else path)


# -- what they gave --------------------------------------------------------------------------------


def _set_lines(plan: DemoPlan) -> list[str]:
    counts = read_manifest(plan.set).counts
    return [
        f"{counts.get('rows', 0)} texts, {counts.get('rows_on_task', 0)} of them the "
        f"application's, with {counts.get('answer_tokens', 0)} tokens that the target said"
    ]


def _training_lines(plan: DemoPlan) -> list[str]:
    key = f"held_out/{plan.set.name}/al"
    lengths = [row[key] for row in read_log(plan.out / "run") if key in row]
    if not lengths:
        return []
    before, best = lengths[0], max(lengths)
    return [f"AL on held-out texts: {before:.2f} before the first step, {best:.2f} at best"]


def _evaluation_lines(plan: DemoPlan, when: str) -> list[str]:
    evaluation = _read(plan, when)
    lines = [
        "{}: AL {} incl. bonus, {} as fast as without".format(result.set, *_numbers(result))
        for result in evaluation.results
    ]
    gaps = [gap.text for gap in evaluation.gaps]
    return [*lines, *gaps, f"by position, by context, by request: {plan.report(when)}"]


def _numbers(result: SetResult) -> tuple[str, str]:
    """Return AL and speedup of a set."""
    return number(result.acceptance[DRAFTER].al), number(result.speed[POLICY].speedup, "×")


def _read(plan: DemoPlan, when: str) -> Evaluation:
    return Evaluation.read_file(plan.report(when).with_suffix(".json"), "report")


# -- serving ---------------------------------------------------------------------------------------


def decide(console: Console, plan: DemoPlan) -> Contender:
    """Print AL and speed of every drafter that could serve, and return the fastest."""
    after, together = _read(plan, "after"), _read(plan, "together")
    contenders = contenders_of(plan, after, together)
    best = winner(contenders)
    console.print()
    console.print(contest_table(contenders, DECISIVE))
    say(console, f"The fastest over both sets serves: {best.name}.", "bold")
    return best


def contenders_of(plan: DemoPlan, after: Evaluation, together: Evaluation) -> list[Contender]:
    """Return the drafters that could serve, with their numbers on the decisive sets."""
    corpus = f"corpus={corpus_versions(plan.corpus)[-1]}"
    return [
        contender("look-ups (suffix)", f"suffix,{corpus}", together, DECISIVE, SUFFIX),
        contender("the trained drafter", str(plan.trained), after, DECISIVE),
        contender("both (hybrid)", f"{plan.hybrid},{corpus}", together, DECISIVE),
    ]


def serve(console: Console, plan: DemoPlan, app: App, chosen: Contender) -> int:
    """Start a server with the chosen drafter and ask it as the application asks. Return the exit
    code."""
    arguments = (MODEL, "--drafter", f"{NAME}={chosen.spec}")
    headline(
        console,
        CHAPTERS,
        CHAPTERS,
        f"serving with {chosen.name}",
        "New customers write to the server, each answered without and with speculation.",
        ("serve", *arguments),
    )
    assert app.bounds.grammar is not None  # support.yaml's
    schema = {"name": NAME, "schema": json.loads(app.bounds.grammar.source)}
    return compare_served(
        console,
        arguments,
        plan.out / "server.log",
        [BenchPrompt(name, NAME, messages(app, text)) for name, text in REQUESTS.items()],
        RUNS,
        max_tokens=app.sampling.max_tokens,
        bound={"response_format": {"type": "json_schema", "json_schema": schema}},
    )


def messages(app: App, text: str) -> tuple[dict[str, str], ...]:
    """Return the messages that the application sends when a customer writes `text`."""
    user = {"role": "user", "content": app.template.replace("{prompt}", text)}
    return (user,) if app.system is None else ({"role": "system", "content": app.system}, user)


def epilogue(console: Console, plan: DemoPlan, names: Sequence[str]) -> None:
    """Print before and after, and all drafters beside each other; the time that it took, and where
    to go from here."""
    table = tables.base_table("before and after")
    table.add_column("set")
    for column in ("AL\nbefore", "\nafter", "speedup\nbefore", "\nafter"):
        table.add_column(column, justify="right")
    after = _read(plan, "after")
    for old, new in zip(_read(plan, "before").results, after.results, strict=True):
        (al, speed), (al_now, speed_now) = _numbers(old), _numbers(new)
        table.add_row(new.set, al, al_now, speed, speed_now)
    console.print()
    console.print(table)
    console.print(contest_table(contenders_of(plan, after, _read(plan, "together")), DECISIVE))
    times = seconds_of(plan.out, names)
    stage_times = ", ".join(f"{name} {minutes(seconds)}" for name, seconds in times.items())
    say(console, f"{minutes(sum(times.values()))} in all: {stage_times}")
    say(
        console,
        "For your own application: copy apps/support.yaml, say what yours is, and give the same "
        "commands (`source .venv/bin/activate` first). docs/your-drafter.md goes through them.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run_alone("paceline.cli.demo_train", DemoPlan, argv)


if __name__ == "__main__":
    sys.exit(main())
