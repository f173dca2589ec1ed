"""Prompts with the larger model's answers, and tasks with known answers, as they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.bench.prompts import conversation_of
from paceline.core import Grammar, InvalidRequest, SamplingParams
from paceline.dataset.training_set import (
    MANIFEST,
    Manifest,
    TrainingRow,
    read_binding,
    read_rows,
)
from paceline.engine.tool_formats import ToolFormat, format_of
from paceline.evaluate.doctor import encoded
from paceline.evaluate.sets import evenly, prompt_of
from paceline.models.any_target import AnyTarget
from paceline.models.loader import template_digest
from paceline.models.tokenizer import template_for
from paceline.synth.app import AppSampling

TASK_TOKENS = 320  # of a response to a task, at most
SPLITS = {"held_out": "held out", "foreign": "foreign"}  # that student and teacher are compared on
LOOKED_AT = 8  # rows of a set whose prompts are written anew


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as token ids, and what the larger model answered. `grammar` is what the
    application's answers are bound to, None: they are free; `calls` is the format of calls in
    them, None where the application has no tools."""

    ids: tuple[int, ...]
    answer: str
    params: SamplingParams
    grammar: Grammar | None = None
    calls: ToolFormat | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation, and what a right answer holds."""

    messages: tuple[dict[str, str], ...]
    answer: str


def read_questions(
    folder: Path, manifest: Manifest, split: str, student: AnyTarget, most: int
) -> list[Question]:
    """Return at most `most` different prompts of the application's task in a split, spread evenly
    over it, that leave room for an answer in the student's context.

    Raises InvalidRequest (field `sets`) for a split whose prompts are all too long.
    """
    binding = read_binding(manifest.app, f"{folder / MANIFEST}: app")
    description = manifest.app.get("description", {})
    sampling = AppSampling.read(description.get("sampling", {}))
    params = replace(sampling.params, temperature=0.0)
    calls = None
    if description.get("tools"):
        calls = format_of(template_for(student.tokenizer, with_tools=True))
    part = "on_task" if split == "held_out" else split
    fits = student.max_context - sampling.max_tokens
    different: dict[tuple[int, ...], Question] = {}
    for row in read_rows(folder, split):
        if row.part != part or not row.spans:
            continue
        start, end = row.spans[0]
        answer = student.tokenizer.decode(row.ids[start:end], skip_special_tokens=True)
        grammar = None if binding is None else binding.of(row.source)
        ids = prompt_of(row)
        different.setdefault(ids, Question(ids, answer, params, grammar, calls))
    fitting = [question for question in different.values() if len(question.ids) <= fits]
    if different and not fitting:
        expected = f"a set with prompts of at most {fits} tokens, which the student has room for"
        raise InvalidRequest("sets", str(folder), expected)
    return evenly(fitting, most)


def check_prompts(folder: Path, manifest: Manifest, student: AnyTarget) -> None:
    """Raise InvalidRequest (field `sets`) where the student's chat template writes other token ids
    for the application's prompts than the set has. Templates of one family often differ where the
    application does not use them, in how tools are told."""
    own = template_digest(getattr(student.tokenizer, "chat_template", None) or "")
    if manifest.target.get("template") in (None, own):
        return
    description: Mapping[str, Any] = manifest.app.get("description", {})
    rows = list(islice(_comparable(folder), LOOKED_AT))
    told = not description.get("tools") and bool(rows)
    if told and all(_asked(student, description, row) == prompt_of(row) for row in rows):
        return
    expected = (
        f"a set whose prompts are those of the student's chat template ({own[:12]}); this one was "
        f"made with {manifest.target.get('name')}, whose template differs"
    )
    raise InvalidRequest("sets", str(folder), expected)


def _comparable(folder: Path) -> Iterator[TrainingRow]:
    """Yield rows of the application's task whose message stands in the set."""
    return (row for row in read_rows(folder, "train") if row.part == "on_task" and row.prompt)


def _asked(student: AnyTarget, description: Mapping[str, Any], row: TrainingRow) -> tuple[int, ...]:
    message = str(description.get("template") or "{prompt}").replace("{prompt}", row.prompt)
    system = description.get("system")
    turns = [{"role": "system", "content": str(system)}] if system else []
    conversation = [*turns, {"role": "user", "content": message}]
    variables = description.get("chat_template_kwargs")
    return tuple(encoded(student.tokenizer, conversation, variables))


def read_tasks(name: str, path: str, student: AnyTarget) -> list[Task]:
    """Read JSONL of conversations, in the forms that prompts have, each with an `answer`: a number,
    which the last number of the response must equal, or a text that the response must hold.

    Raises InvalidRequest (field `tasks`), with the line, also for one that is too long.
    """
    tasks = []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("tasks", f"{name}={path}", f"a readable file ({error})") from error
    fits = student.max_context - TASK_TOKENS
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task = _task(line)
        if task is None:
            expected = 'an object with "prompt" or "messages", and "answer", a text or a number'
            raise InvalidRequest("tasks", f"{path}:{number}", expected)
        if len(encoded(student.tokenizer, task.messages)) > fits:
            expected = f"a prompt of at most {fits} tokens, which the student has room for"
            raise InvalidRequest("tasks", f"{path}:{number}", expected)
        tasks.append(task)
    if not tasks:
        raise InvalidRequest("tasks", f"{name}={path}", "a file with at least one task")
    return tasks


def _task(line: str) -> Task | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    messages: Sequence[dict[str, str]] | None = conversation_of(record)
    answer = record.get("answer") if isinstance(record, dict) else None
    if messages is None or not isinstance(answer, str | int | float) or answer == "":
        return None
    return Task(tuple(messages), str(answer))
