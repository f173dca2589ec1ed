"""The prompt sets of an evaluation: the syntax of SETS, and the prompts of each.

demo                      a shipped set
chat=prompts.json         a JSON file of prompts, under a name
code=prompts.jsonl        JSONL or text in any form that `paceline bench --prompts` takes
mine=./chitchat           a set that `paceline synth` wrote: its held-out rows
near=./chitchat:neighbour another choice of its rows, one of CHOICES
own=prompts.jsonl:on_task a file of what the drafter is for; other files are out of domain
far=prompts.jsonl:foreign a file of the same task in prompts from elsewhere
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paceline.bench.prompts import load_prompts, shipped
from paceline.core import Grammar, InvalidRequest
from paceline.dataset.training_set import (
    MANIFEST,
    TrainingRow,
    read_binding,
    read_manifest,
    read_rows,
)
from paceline.evaluate.gap import FOREIGN, ON_TASK, OUT_OF_DOMAIN

# Which rows of a synth set: their split, and of that split which part (None: all of it).
CHOICES: dict[str, tuple[str, str | None]] = {
    "held_out": ("held_out", None),
    "on_task": ("held_out", "on_task"),
    "replay": ("held_out", "replay"),
    "neighbour": ("neighbour", None),
    "foreign": ("foreign", None),
}
ROLES = {"foreign": FOREIGN, "replay": OUT_OF_DOMAIN, "neighbour": OUT_OF_DOMAIN}  # else ON_TASK
EXPECTED = (
    "[NAME=]PATH[:CHOICE] with a folder that `paceline synth` wrote, a file of prompts (JSON, "
    "JSONL or text), or a shipped set: " + ", ".join(shipped())
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. -]*")
Item = TypeVar("Item")
Answer = tuple[tuple[int, ...], tuple[int, ...]]  # what comes before it, and the answer itself
Encode = Callable[[Sequence[dict[str, str]]], list[int]]


@dataclass(frozen=True, slots=True)
class SetSpec:
    """One of SETS, parsed. `choice` is one of CHOICES for a folder, None for all else; `role` says
    whether it is what the drafter was made for, or what must not get worse."""

    name: str
    path: str
    choice: str | None = None
    role: str = OUT_OF_DOMAIN


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """`grammar` is what the application's answers to it are bound to; None: they are free."""

    name: str
    ids: tuple[int, ...]
    grammar: Grammar | None = None


@dataclass(slots=True)
class EvalSet:
    """Prompts as token ids. `answers` are of the set's train split, where it has one. `target` is
    what the set says of the model it is for."""

    spec: SetSpec
    prompts: list[EvalPrompt]
    answers: list[Answer]
    target: dict[str, str]
    left_out: int  # prompts that do not fit the context

    @property
    def grammar(self) -> Grammar | None:
        """The grammar of those prompts whose answers are bound."""
        return next((prompt.grammar for prompt in self.prompts if prompt.grammar), None)


def parse_sets(values: Sequence[str]) -> list[SetSpec]:
    """Parse SETS. Raises InvalidRequest (field `sets`) for bad syntax, an unknown set, and a name
    that stands twice."""
    if not values:
        raise InvalidRequest("sets", list(values), f"at least one {EXPECTED}")
    specs = [_parse(value) for value in values]
    names = [spec.name for spec in specs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest("sets", twice, "a name of its own for each set; write NAME=PATH")
    return specs


def _parse(value: str) -> SetSpec:
    before, equals, after = value.partition("=")
    named = bool(equals) and "/" not in before
    name, rest = (before, after) if named else ("", value)
    if named and not _NAME.fullmatch(name):
        raise InvalidRequest("sets", value, "a name of letters, digits, '.', '_', '-' before '='")
    path, colon, choice = rest.rpartition(":")
    if not colon or Path(rest).exists():
        path, choice = rest, ""
    if choice and choice not in CHOICES:
        expected = "one of " + ", ".join(CHOICES) + " after ':' (nothing a drafter was trained on)"
        raise InvalidRequest("sets", value, expected)
    if Path(path).is_dir():
        if not (Path(path) / MANIFEST).is_file():
            raise InvalidRequest("sets", value, f"a folder with {MANIFEST}, as synth writes it")
        choice = choice or "held_out"
        role = ROLES.get(choice, ON_TASK)
        folder = Path(path).resolve().name
        usual = folder if choice == "held_out" else f"{folder} {choice}"
        return SetSpec(name or usual, path, choice, role)
    if path not in shipped() and not Path(path).is_file():
        raise InvalidRequest("sets", value, EXPECTED)
    if choice not in ("", "on_task", "foreign"):
        expected = "nothing, :on_task or :foreign after prompts; only sets of synth have splits"
        raise InvalidRequest("sets", value, expected)
    role = ROLES.get(choice, ON_TASK) if choice else OUT_OF_DOMAIN
    return SetSpec(name or Path(path).stem, path, role=role)


def load_set(spec: SetSpec, encode: Encode, *, prompts: int, fits: int, answers: int) -> EvalSet:
    """Read a set: `prompts` different prompts of at most `fits` tokens, spread evenly over it, and
    up to `answers` answers of its train split.

    Raises InvalidRequest (field `sets`) for a file of another shape, and for a set that is empty;
    for a manifest that is wrong about what answers are bound to it names the place in there.
    """
    folder = Path(spec.path)
    if spec.choice is None:
        given, target = _file_prompts(spec, encode), {}
    else:
        given, target = _rows_prompts(folder, *CHOICES[spec.choice]), read_manifest(folder).target
    different: dict[tuple[tuple[int, ...], Grammar | None], EvalPrompt] = {}
    for prompt in given:
        different.setdefault((prompt.ids, prompt.grammar), prompt)
    fitting = [prompt for prompt in different.values() if len(prompt.ids) <= fits]
    left_out = len(different) - len(fitting)
    if not fitting:
        expected = f"at least one row in {spec.choice}" if spec.choice else "at least one prompt"
        if left_out:
            told = f"{left_out} are longer than the context allows"
            expected = f"a prompt of at most {fits} tokens; {told}"
        raise InvalidRequest("sets", spec.name, expected)
    chosen = evenly(fitting, prompts)
    warming = [] if spec.choice is None else _train_answers(folder, chosen, answers)
    return EvalSet(spec, chosen, warming, target, left_out)


def _rows_prompts(folder: Path, split: str, part: str | None) -> list[EvalPrompt]:
    """Return the prompts of a split, each bound to its grammar where its answers were."""
    binding = read_binding(read_manifest(folder).app, f"{folder / MANIFEST}: app")
    return [
        EvalPrompt(row.source, prompt_of(row), binding.of(row.source) if binding else None)
        for row in read_rows(folder, split)
        if part is None or row.part == part
    ]


def prompt_of(row: TrainingRow) -> tuple[int, ...]:
    """Return what the target read before its first token."""
    return row.ids[: min((start for start, _ in row.spans), default=len(row.ids))]


def evenly(items: Sequence[Item], count: int) -> list[Item]:
    """Return `count` of the items, spread evenly and always the same, or all if there are fewer."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _train_answers(folder: Path, prompts: Iterable[EvalPrompt], count: int) -> list[Answer]:
    """Return answers that the target gave to other prompts than these."""
    asked = {prompt.ids for prompt in prompts}
    rows = [row for row in read_rows(folder, "train") if prompt_of(row) not in asked]
    chosen = evenly(rows, count)
    return [(row.ids[:start], row.ids[start:end]) for row in chosen for start, end in row.spans]


def _file_prompts(spec: SetSpec, encode: Encode) -> list[EvalPrompt]:
    prompts = load_prompts(spec.path, "sets")
    return [EvalPrompt(prompt.name, tuple(encode(prompt.messages))) for prompt in prompts]
