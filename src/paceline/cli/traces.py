"""`paceline traces`: what a server captured, as tables or by SQL, and its deletion."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Strict
from rich.console import Console

from paceline.cli.option import Argument
from paceline.cli.options import DEFAULTS, MODEL_HELP, ModelOption
from paceline.cli.show import plain_table
from paceline.core import InvalidRequest
from paceline.core.cohorts import PARTS
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, Flag, OneOf

if TYPE_CHECKING:
    from paceline.dataset.traces.query import QueryResult
    from paceline.drafters.corpus_folder import CorpusAnswer

BY = ("cohort", "day", "drafter")
SPLITS = ("train", "held_out")  # of a set of answers
FOLDER_HELP = "the folder that `paceline serve --traces` writes"
Folder = Annotated[Path, Strict(False), Argument(positional=True, metavar="FOLDER")]
Days = Annotated[float, Between(0, open=True), Flag(metavar="DAYS")]
NAMES = (*PARTS, "day", "drafter", "version")
LABELS = {
    "share": "share",
    "requests": "requests",
    "tokens": "tokens",
    "al": "AL",
    "al_error": "±",
    "tokens_per_second": "tok/s",
    "speedup": "speedup",
    "ttft": "TTFT",
}


@checked
class TracesCommand:
    """Show what a server captured: requests, acceptance and speed by cohort and by day.

    AL counts the bonus token; ± is half of its 95% interval, with a request as the unit. tok/s is
    that of one request after its first token, or in all where its tokens came at once, and speedup
    that over decoding without drafts, by the server's cost table. SQL may use the views requests,
    rounds and cohorts.
    """

    folder: Folder = about(FOLDER_HELP)
    by: Annotated[str, OneOf(BY)] | None = about(
        "what the table has a row for", None, "a table by cohort and one by day"
    )
    days: Days | None = about("only requests of the last DAYS days", None, "all")
    sql: str | None = about("run a query of DuckDB in place of these tables", None)
    json: bool = about("print the rows as JSON", False)

    def __post_init__(self) -> None:
        if self.sql is not None and self.by is not None:
            raise InvalidRequest("by", self.by, "no value beside --sql")

    def run(self) -> int:
        from paceline.dataset.traces.query import open_traces

        since = None if self.days is None else time.time() - 86400 * self.days
        with open_traces(self.folder, since=since) as traces:
            if self.sql is not None:
                self._show({"": traces.query(self.sql)})
            else:
                names = ("cohort", "day") if self.by is None else (self.by,)
                self._show({name: traces.summary(name) for name in names})
        return 0

    def _show(self, results: dict[str, QueryResult]) -> None:
        if self.json:
            plain = {name: result.as_json() for name, result in results.items()}
            shown: object = plain if len(plain) > 1 else next(iter(plain.values()))
            print(json.dumps(shown, indent=2, default=_as_text))
            return
        console = Console(highlight=False)
        for name, result in results.items():
            if name and not result.rows:
                console.print(f"{self.folder}: no request in this time", soft_wrap=True)
                return
            console.print(_table(result, whole=not name))


@checked
class PurgeCommand:
    """Delete from traces, at once: what has expired, and what is named.

    Files are written anew without the deleted rows and token ids. A server deletes what has expired
    by itself, within a quarter of an hour.
    """

    folder: Folder = about(FOLDER_HELP)
    tokens: bool = about("delete the token ids of all requests", False)
    key: str | None = about("delete all rows of an API key, by its name", None)
    keep: Days | None = about("delete what is older than DAYS days", None, "what has expired")

    def run(self) -> int:
        from paceline.dataset.traces.folder import check_folder
        from paceline.dataset.traces.retention import purge

        check_folder(self.folder)
        purged = purge(self.folder, keep_days=self.keep, tokens=self.tokens, key=self.key)
        print(
            f"deleted {purged.requests} requests, the token ids of {purged.token_rows} others, "
            f"and {purged.files} files"
        )
        return 0


@checked
class TraceSetCommand:
    """Write the answers of traces that may be learnt as a training set.

    `paceline train` makes a drafter of it, and `paceline distil` a smaller model. The latest
    answers are held out. The set holds what users were told: it is marked so, nobody deletes it
    when its answers expire, and it has to be removed after --kept DAYS. Traces name the model that
    answered, and not its weights: those are taken to be those of --model.
    """

    folder: Folder = about(FOLDER_HELP)
    out: Annotated[Path, Strict(False), Argument(positional=True, metavar="OUT")] = about(
        "folder of the set, which must not be there"
    )
    model: ModelOption = about(f"the target that answered: {MODEL_HELP}", DEFAULTS.model)
    app: str | None = about("only answers of this app", None, "all apps")
    schema: Annotated[Path, Strict(False)] | None = about(
        "take the answers that a grammar bound, whose JSON schema is in this file",
        None,
        "free answers",
    )
    held_out: Annotated[float, Between(0, 1, open=True)] = about("share that is held out", 0.1)
    least_answers: Annotated[int, Between(2)] = about("answers without which no set is made", 200)
    most_tokens: Annotated[int, Between(1)] = about("most tokens, of the newest", 4_000_000)
    kept: Days = about(
        "days that you keep the set: answers that have to be forgotten before are left out", 7.0
    )

    def run(self) -> int:
        from paceline.autospec.answer_set import SOURCE, SetLimits, write_answer_set
        from paceline.autospec.answers import traced_answer
        from paceline.autospec.store.records import TargetIdentity
        from paceline.dataset.traces.reader import Selection, read_tokens
        from paceline.dataset.training_set import Binding
        from paceline.models.any_target import read_target
        from paceline.models.loader import identity

        if self.out.exists():
            raise InvalidRequest("out", str(self.out), "a folder that is not there yet")
        bound = None
        if self.schema is not None:
            value = _schema(self.schema)
            bound = Binding(kind="json_schema", value=value, sources=(SOURCE,))
        found = read_target(self.model)
        made = identity(found)
        whose = {"model": made["name"]} | ({} if self.app is None else {"app": self.app})
        traces = list(read_tokens(self.folder, Selection(cohort=whose)))
        taken = [trace for trace in traces if trace.grammar == (bound is not None)]
        if others := len(traces) - len(taken):
            how = "a grammar bound (--schema takes those)" if bound is None else "were free"
            print(f"answers left out that {how}: {others}")
        answers = sorted(map(traced_answer, taken), key=lambda answer: answer.time)
        size, largest = found.shape.vocab_size, max(map(_largest, answers), default=0)
        if largest >= size:
            told = f"the model that answered: token id {largest} is beyond its vocabulary of {size}"
            raise InvalidRequest("model", self.model, told)
        target = TargetIdentity(
            made["name"], made["weights_sha256"], made["tokenizer_sha256"], made["template"]
        )
        until = time.time() + 86400 * self.kept
        limits = SetLimits(self.held_out, self.least_answers, self.most_tokens, until, of_kept=True)
        name = self.app or "all requests"
        made_set = write_answer_set(self.out, answers, target, name, limits, bound)
        left_out = sum(number for why, number in made_set.counts.items() if why != "read")
        rows = ", ".join(f"{split} {sum(s.rows for s in made_set.of(split))}" for split in SPLITS)
        print(f"{self.out}: {rows}; left out {left_out} of {made_set.counts['read']} answers")
        return 0


def _largest(answer: CorpusAnswer) -> int:
    return max((*answer.prompt_ids, *answer.output_ids), default=0)


def _schema(path: Path) -> str:
    """Return the text of a JSON schema. Raises InvalidRequest for a file that holds none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest("schema", str(path), f"a file with a JSON schema ({error})") from error
    if not isinstance(value, dict):
        raise InvalidRequest("schema", str(path), "a file with a JSON schema, an object")
    return json.dumps(value)


def _table(result: QueryResult, *, whole: bool) -> Any:
    """Return a table of the columns that people read, or of all (`whole`)."""
    names = [name for name in result.columns if whole or name in (*NAMES, *LABELS)]
    if not whole:  # a part that is the same everywhere says nothing
        rows = result.as_json()
        same = {n for n in PARTS if n in names and len({row[n] for row in rows}) == 1}
        names = [name for name in names if name not in same or name == "app"]
    left = [name for name in names if name in NAMES]
    table = plain_table(*(LABELS.get(name, name) for name in names), left=left)
    for row in result.as_json():
        table.add_row(*(_cell(name, row[name]) for name in names))
    return table


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        if math.isnan(value):
            return "–"
        if name == "share":
            return f"{value:.0%}"
        return f"{value:.2f}" if name in ("al", "al_error", "speedup") else f"{value:.3g}"
    return str(value)


def _as_text(value: object) -> str:
    """Write what JSON has no form for, such as a date."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)
