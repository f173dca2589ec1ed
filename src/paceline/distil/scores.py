"""Score a student: count the answers that agree with the larger model's, and the tasks that it
answers right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.core import Grammar, SamplingParams
from paceline.distil.questions import TASK_TOKENS, Question, Task
from paceline.engine.tool_formats import ToolFormat
from paceline.evaluate.doctor import encoded
from paceline.llm import LLM

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
NO_JSON = (ValueError, RecursionError)  # what json.loads raises for a text that is none


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of a model's answers to `prompts` prompts beside the larger model's answers: `same`
    counts equal ones, `fields` is the mean share of equal fields. `fits` counts answers that fit
    the application's grammar without being bound to it; None where answers are free."""

    prompts: int
    same: int
    fields: float
    fits: int | None


def agreement(llm: LLM, questions: Sequence[Question]) -> Agreement:
    """Answer questions at T=0 as the application does, and where it binds answers also without."""
    bound = [replace(question.params, grammar=question.grammar) for question in questions]
    prompts = [list(question.ids) for question in questions]
    said = [result.text for result in llm.generate(prompts, bound)]
    shares = [
        equal_fields(question.answer, text, question.calls)
        for question, text in zip(questions, said, strict=True)
    ]
    fits = None
    if any(question.grammar for question in questions):
        free = llm.generate(prompts, [question.params for question in questions])
        fits = sum(
            _fits(llm, question.grammar, result.text)
            for question, result in zip(questions, free, strict=True)
            if question.grammar is not None
        )
    same = sum(share == 1.0 for share in shares)
    return Agreement(len(questions), same, sum(shares) / len(shares), fits)


def equal_fields(wanted: str, said: str, calls: ToolFormat | None = None) -> float:
    """Return 2 x the fields that two answers share ÷ the fields of both, where a field is a place
    in a JSON value, or in calls of tools, with what stands there. Answers of other kinds are equal,
    1.0, or not, 0.0."""
    values = [_value(text, calls) for text in (wanted, said)]
    if None in values:
        return float(wanted.strip() == said.strip())
    mine, other = (set(_fields(value)) for value in values)
    return 2 * len(mine & other) / (len(mine) + len(other))


def _value(text: str, calls: ToolFormat | None) -> Any:
    """Return the JSON value of an answer, or its calls; None where there is none."""
    try:
        return json.loads(text)
    except NO_JSON:
        pass
    return None if calls is None or calls.tags is not None else _calls(text, calls) or None


def _calls(text: str, form: ToolFormat) -> list[dict[str, Any]]:
    """Return names and arguments of the calls in an answer whose arguments are JSON."""
    calls: list[dict[str, Any]] = []
    for piece in text.split(form.before)[1:]:
        name, _, rest = piece.partition(form.between)
        try:
            arguments, _ = json.JSONDecoder().raw_decode(rest.lstrip())
        except NO_JSON:
            return []
        calls.append({"name": name, "arguments": arguments})
    return calls


def _fields(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _fields(part, f"{place}/{name}")
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from _fields(part, f"{place}/{index}")
    else:
        yield place, json.dumps(value)


def _fits(llm: LLM, grammar: Grammar, text: str) -> bool:
    """Return whether an answer is one that the grammar allows. JSON may have any white space."""
    if grammar.kind == "json_schema":
        try:
            text = json.dumps(json.loads(text), ensure_ascii=False)  # as grammars here spell it
        except NO_JSON:
            return False
    matcher = llm.engine.grammars.compiler.compile(grammar).deep_copy()
    ids = llm.tokenizer(text, add_special_tokens=False)["input_ids"]
    return bool(matcher.consume_tokens(ids)) and bool(matcher.is_accepting())


def right_answers(llm: LLM, tasks: Sequence[Task]) -> int:
    """Return how many tasks a model answers right at T=0."""
    params = SamplingParams(temperature=0.0, max_tokens=TASK_TOKENS)
    prompts = [encoded(llm.tokenizer, task.messages) for task in tasks]
    results = llm.generate(prompts, params)
    return sum(is_right(task.answer, r.text) for task, r in zip(tasks, results, strict=True))


def is_right(answer: str, said: str) -> bool:
    """Return whether a response is right: its last number equals a number, or it holds a text, in
    any case, as whole words."""
    wanted = _number(answer)
    if wanted is not None:
        numbers = NUMBER.findall(said)
        return bool(numbers) and _number(numbers[-1]) == wanted
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", said, re.IGNORECASE) is not None


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Scores:
    """Everything that was measured of one model: agreement by set and split, and the share of right
    answers by the name of the tasks."""

    agreement: Mapping[str, Agreement]
    tasks: Mapping[str, float]


def verdict(before: Scores, after: Scores, fall: float) -> list[str]:
    """Return why a student must not replace the model that it was, a line each; none where it may:
    more fields agree with the larger model's on every split, no fewer answers fit the grammar, and
    no share of right answers to tasks fell by more than `fall`."""
    reasons = []
    for name, now in after.agreement.items():
        was = before.agreement[name]
        if now.fields <= was.fields:
            reasons.append(f"{name}: {now.fields:.3f} of the fields agree, {was.fields:.3f} before")
        if now.fits is not None and was.fits is not None and now.fits < was.fits:
            reasons.append(f"{name}: {now.fits} answers fit the grammar, {was.fits} before")
    for name, share in after.tasks.items():
        if share < before.tasks[name] - fall:
            was_right = before.tasks[name]
            reasons.append(f"{name}: {share:.3f} of the tasks right, {was_right:.3f} before")
    return reasons
