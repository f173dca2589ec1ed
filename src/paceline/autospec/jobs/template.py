"""Templates of jobs: a command with places for its inputs, its budget, and how it is stopped."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Formatter
from typing import Annotated

import yaml
from pydantic import model_validator

from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import Document
from paceline.core.field_types import Between, NonEmpty, Several

TEMPLATES = Path(__file__).parent / "templates"
SHIPPED = ("subprocess", "torchrun", "slurm", "skypilot")
SECONDS_PER_HOUR = 3600.0
# Inputs of a job, empty unless they are given, and places that a runner fills by itself.
INPUTS = ("model", "data", "init", "epochs", "steps", "gpus")
OWN_PLACES = ("out", "job", "python", "templates", "budget_seconds", "budget_minutes")
Word = NonEmpty | Annotated[tuple[NonEmpty, ...], Several]
Words = Annotated[tuple[Word, ...], Several]
Values = Mapping[str, str | None]


class JobTemplate(Document):
    """A job as a user describes it in YAML. Words of commands have places, as `{data}`; an inner
    list stands only where all of its places are filled."""

    command: Words = about("the program and its arguments; no shell reads them")
    resume: Words = about("arguments that the command gets besides when it starts again", ())
    cancel: Words = about(
        "a command that ends what the job has started elsewhere; it runs when the job is stopped "
        "and before it starts again",
        (),
    )
    environment: dict[str, str] = about("variables for the command", dict)
    best: Annotated[tuple[NonEmpty, ...], Several] = about(
        "where the best checkpoint lies; the first that exists counts", ("{out}",)
    )
    budget_seconds: Annotated[float, Between(0, open=True)] = about(
        "seconds that the job may run for, all its starts together", SECONDS_PER_HOUR
    )
    budget_cost: Annotated[float, Between(0, open=True)] | None = about(
        "most that the job may cost, in the currency of cost_per_hour", None, "no bound"
    )
    cost_per_hour: Annotated[float, Between(0)] = about("price of an hour", 0.0)
    queue_seconds: Annotated[float, Between(0)] = about(
        "seconds besides, that a job may wait in the queue of a cluster", 0.0
    )
    grace_seconds: Annotated[float, Between(0)] = about(
        "seconds between SIGTERM and SIGKILL when the job is stopped", 30.0
    )
    nice: Annotated[int, Between(0, 19)] = about("how far the job steps back on the CPU", 19)
    cpus: str | None = about("cores that the job may use, as 0-3,8", None, "all")
    attempts: Annotated[int, Between(1, 100)] = about(
        "starts before a job that dies each time is given up", 3
    )

    @model_validator(mode="after")
    def _check(self) -> JobTemplate:
        if self.budget_cost is not None and not self.cost_per_hour:
            raise InvalidRequest("budget_cost", self.budget_cost, "cost_per_hour beside it")
        if not self.command:
            raise InvalidRequest("command", [], "a program and its arguments")
        if self.cpus is not None:
            parse_cpus(self.cpus)
        for field in ("command", "resume", "cancel", "best"):
            _places(field, getattr(self, field))
        return self

    @classmethod
    def load(cls, name: str) -> JobTemplate:
        """Read a template that is shipped, by its name, or a YAML file. Raises InvalidRequest."""
        path = TEMPLATES / f"{name}.yaml" if name in SHIPPED else Path(name).expanduser()
        try:
            document = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            expected = f"one of {', '.join(SHIPPED)}, or a readable YAML file ({reason})"
            raise InvalidRequest("template", name, expected) from None
        return cls.read(document, f"template {name}")

    def plan(
        self, values: Values, *, seconds: float | None = None, cost: float | None = None
    ) -> JobPlan:
        """Return the job that these values make of the template; a value of None fills nothing.
        `seconds` and `cost` replace the template's budget.

        Raises InvalidRequest for a place that no value fills.
        """
        cost = self.budget_cost if cost is None else cost
        if cost is not None and not self.cost_per_hour:
            raise InvalidRequest("cost", cost, "a template with cost_per_hour")
        budget = self.budget_seconds if seconds is None else seconds
        if cost is not None:
            budget = min(budget, cost / self.cost_per_hour * SECONDS_PER_HOUR)
        given = {**dict.fromkeys(INPUTS), **values}
        plan = JobPlan(
            self.command, self.resume, self.cancel, self.environment, self.best, given,
            budget, self.queue_seconds, self.grace_seconds, self.cost_per_hour, self.nice,
            self.cpus, self.attempts,
        )  # fmt: skip
        places = {name: "" for name in OWN_PLACES}
        for words in (self.command, self.resume, self.cancel, self.best):
            fill(words, {**given, **places})
        return plan


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A template with the values of one job; `seconds` is its budget."""

    command: Sequence[str | Sequence[str]]
    resume: Sequence[str | Sequence[str]]
    cancel: Sequence[str | Sequence[str]]
    environment: Mapping[str, str]
    best: Sequence[str]
    values: Values
    seconds: float
    queue_seconds: float
    grace_seconds: float
    cost_per_hour: float
    nice: int
    cpus: str | None
    attempts: int

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON has it."""
        return asdict(self)

    def filled(self, out: Path, label: str) -> Values:
        """Return every value of a place, those of the runner among them."""
        return {
            **self.values,
            "out": str(out),
            "job": label,
            "python": sys.executable,
            "templates": str(TEMPLATES),
            "budget_seconds": f"{self.seconds:.0f}",
            "budget_minutes": f"{max(1, round(self.seconds / 60))}",
        }


def fill(words: Sequence[str | Sequence[str]], values: Values) -> list[str]:
    """Return a command with its places filled. Inner lists with a place whose value is None are
    left out. Raises InvalidRequest for a place without a value."""
    filled: list[str] = []
    for word in words:
        group = (word,) if isinstance(word, str) else word
        names = _places("command", group)
        unknown = sorted(names - values.keys())
        if unknown:
            expected = f"places among {', '.join(sorted(values))}"
            raise InvalidRequest("command", f"{{{unknown[0]}}}", expected)
        empty = sorted(name for name in names if values[name] is None)
        if not empty:
            filled += [text.format_map(values) for text in group]
        elif isinstance(word, str):
            raise InvalidRequest(empty[0], None, f"a value for {word!r} of the template")
    return filled


def parse_cpus(text: str) -> list[int]:
    """Read a set of cores, as 0-3,8. Raises InvalidRequest (field `cpus`)."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidRequest("cpus", text, "numbers of cores, as 0-3,8")
        cores |= set(range(int(first), int(last or first) + 1))
    return sorted(cores)


def _places(field: str, words: Sequence[str | Sequence[str]]) -> set[str]:
    """Return the names of the places in words. Raises InvalidRequest for braces that are none."""
    names: set[str] = set()
    for word in words:
        if not isinstance(word, str):
            names |= _places(field, word)
            continue
        try:
            pieces = [name for _, name, _, _ in Formatter().parse(word) if name is not None]
        except ValueError:
            pieces = [""]
        if not all(name.isidentifier() for name in pieces):
            raise InvalidRequest(field, word, "places as {data}, and {{ for a brace itself")
        names |= {*pieces}
    return names
