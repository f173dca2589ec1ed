"""Test the comparison of answers, and the decision to keep a student."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.core import Grammar, InvalidRequest
from paceline.distil.questions import Question, read_tasks
from paceline.distil.scores import (
    Agreement,
    Scores,
    agreement,
    equal_fields,
    is_right,
    verdict,
)
from paceline.engine.tool_formats import HERMES
from paceline.llm import Result
from paceline.models.any_target import read_target

CALL = '{"tool": "refund", "arguments": {"order_id": "AT-1", "reason": "late"}}'


@pytest.mark.parametrize(
    "said, share",
    [
        (CALL, 1.0),
        (json.dumps(json.loads(CALL), indent=2), 1.0),
        ('{"arguments": {"reason": "late", "order_id": "AT-1"}, "tool": "refund"}', 1.0),
        ('{"tool": "refund", "arguments": {"order_id": "AT-2", "reason": "late"}}', 2 / 3),
        ('{"tool": "refund", "arguments": {"order_id": "AT-1"}}', 4 / 5),
        ('{"tool": "refund", "arguments": {"order_id": 1, "reason": "late", "x": [1]}}', 4 / 7),
        ("refund AT-1", 0.0),
        (CALL[:-1], 0.0),
    ],
)
def test_fields_are_compared_by_place_and_value(said: str, share: float) -> None:
    assert equal_fields(CALL, said) == pytest.approx(share)


def test_texts_that_are_no_json_are_equal_or_not() -> None:
    assert equal_fields("Yes.", " Yes.\n") == 1.0
    assert equal_fields("Yes.", "Yes, of course.") == 0.0


@pytest.mark.parametrize(
    "answer, said, right",
    [
        ("1,200", "First 30, so it is $1200.", True),
        ("12", "12 apples and 3 pears", False),
        ("0.5", "one half", False),
        ("Paris", "It is PARIS.", True),
        ("Paris", "Parisian", False),
        ("C++", "in C++, say", True),
    ],
)
def test_a_task_is_right_by_its_last_number_or_its_words(
    answer: str, said: str, right: bool
) -> None:
    assert is_right(answer, said) is right


def test_calls_of_tools_are_compared_by_name_and_argument() -> None:
    calls = [("refund", {"order_id": "AT-1", "reason": "late"}), ("escalate", {})]
    wanted = HERMES.write(calls)
    assert equal_fields(wanted, HERMES.write(calls), HERMES) == 1.0
    other = HERMES.write([("refund", {"order_id": "AT-1", "reason": "broken"}), calls[1]])
    assert equal_fields(wanted, other, HERMES) == pytest.approx(4 / 5)
    assert equal_fields(wanted, "I do not know.", HERMES) == 0.0
    assert equal_fields(wanted, other) == 0.0  # of an application without tools they are text


def test_tasks_are_refused_with_their_line(student: Path, tmp_path: Path) -> None:
    path, found = tmp_path / "tasks.jsonl", read_target(str(student))
    path.write_text('{"prompt": "1 + 1?", "answer": 2}\n\n{"prompt": "2 + 2?"}\n')
    with pytest.raises(InvalidRequest, match=r"tasks: .*tasks.jsonl:3.*answer"):
        read_tasks("sums", str(path), found)
    path.write_text('{"prompt": "1 + 1?", "answer": 2}\n')
    assert [task.answer for task in read_tasks("sums", str(path), found)] == ["2"]
    path.write_text(json.dumps({"prompt": "1" * 5000, "answer": 2}))
    with pytest.raises(InvalidRequest, match=r"tasks.jsonl:1.*which the student has room for"):
        read_tasks("sums", str(path), found)
    path.write_text("")
    with pytest.raises(InvalidRequest, match="at least one task"):
        read_tasks("sums", str(path), found)


def scores(fields: float, fits: int | None = None) -> dict[str, Agreement]:
    return {"held out": Agreement(10, 5, fields, fits)}


@pytest.mark.parametrize(
    "before, after, tasks, reasons",
    [
        (scores(0.5, 8), scores(0.8, 8), 0.46, 0),
        (scores(0.5), scores(0.8), 0.44, 1),
        (scores(0.5, 8), scores(0.8, 7), 0.5, 1),
        (scores(0.8, 8), scores(0.8, 7), 0.1, 3),
    ],
)
def test_a_student_is_kept_where_it_is_better_and_nothing_is_lost(
    before: dict[str, Agreement], after: dict[str, Agreement], tasks: float, reasons: int
) -> None:
    was, now = Scores(before, {"sums": 0.5}), Scores(after, {"sums": tasks})
    assert len(verdict(was, now, 0.05)) == reasons


def test_answers_that_are_bound_count_by_whether_they_fit_without(
    teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(str(teacher), None, dtype="float32", threads=1)
    grammar = Grammar("json_schema", '{"enum": [{"tool": "ü"}, {"tool": "b"}]}')
    params = SamplingParams(temperature=0.0, max_tokens=24)
    ids = tuple(llm.tokenizer("fox")["input_ids"])
    questions = [Question(ids, '{"tool": "a"}', params, grammar)] * 2
    real = llm.generate
    free = iter(['{ "tool":"ü" }', '{"tool": "c"}'])

    def generate(prompts: list[list[int]], params: list[SamplingParams]) -> list[Result]:
        results = real(prompts, params)
        for result, asked in zip(results, params, strict=True):
            if asked.grammar is None:
                result.choices[0].text = next(free)
        return results

    monkeypatch.setattr(llm, "generate", generate)
    found = agreement(llm, questions)
    assert found.prompts == 2 and found.fits == 1
    assert found.same in (0, 2) and found.fields == found.same / 2
