"""The page, the Markdown and the comparison, of evaluations that are made up."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from paceline.core import InvalidRequest
from paceline.evaluate.comparison import compare, regressions
from paceline.evaluate.report import evaluation_table, lines, overview, page
from paceline.evaluate.result import Evaluation, RequestRow
from tests.evaluate.made import evaluated, made_up, random_rows, row


def even(accepted: int, requests: int = 8) -> list[RequestRow]:
    """Requests whose every round accepts so many."""
    return [row([accepted] * 10, name=f"p{index}") for index in range(requests)]


def test_a_page_can_be_drawn_again_from_its_json() -> None:
    made = evaluated({"one": random_rows(8), "two <&>": random_rows(6, 1)})
    again = Evaluation.from_json(json.loads(json.dumps(made.as_json())), "again")
    assert again == made and page(again) == page(made)


def test_a_page_says_what_the_json_says_and_loads_nothing() -> None:
    made = evaluated({"one": random_rows(8), "two <&>": random_rows(6, 1)})
    text = page(made)
    assert "<script" not in text and "src=" not in text and "href=" not in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in text
    for result in made.results:
        acceptance = result.acceptance["drafter"]
        assert acceptance.al is not None and acceptance.al_interval is not None
        low, high = acceptance.al_interval
        assert f"{acceptance.al:.2f} ({low:.2f}–{high:.2f})" in text
        assert f">{acceptance.rounds}<" in text
    assert "two &lt;&amp;&gt;" in text and "two <&>" not in text
    assert "same text: yes" in text and "y = x" in text


def test_its_charts_are_svg_with_a_bar_for_every_number() -> None:
    text = page(evaluated({"one": random_rows(8)}))
    charts = [ElementTree.fromstring(c) for c in re.findall(r"<svg.*?</svg>", text, re.S)]
    space = "{http://www.w3.org/2000/svg}"
    titles = [chart.findall(f"{space}text")[0].text for chart in charts]
    assert titles == [
        "Acceptance length by set",
        "Speedup against tokens per round: every set",
        "Acceptance by position: one",
        "Acceptance length by context: one",
        "Speedup against tokens per round: one",
    ]
    bars = [b for b in charts[2].findall(f"{space}rect") if b.find(f"{space}title") is not None]
    assert len(bars) == 4 * 3  # positions × drafters
    assert len(charts[4].findall(f"{space}circle")) == 8 * 2  # requests × policies


def test_another_text_is_shouted() -> None:
    rows = random_rows(6)
    rows[2]["same_text"]["ngram/full"] = False
    made = evaluated({"one": rows})
    assert not made.same_text
    assert 'class="bad">same text: NO' in page(made)
    assert "Same text: no." in evaluation_table(made)


def test_a_model_card_gets_a_markdown_table() -> None:
    text = evaluation_table(evaluated({"a|b": even(1), "two": even(2)}))
    lines = text.splitlines()
    assert lines[0].startswith("| set |  | T | AL incl. bonus (95%) |")
    assert (
        "| a\\|b | out of domain | 0 | 2.00 (2.00–2.00) | 2.00, 2.00× | 2.00, 2.00× | "
        "2.00× (2.00–2.00) |" in text
    )
    assert "| two | 0 | 100% | 100% | 0% | 0% |" in text
    assert "mine (v, drafts of up to 4) for tiny" in lines[-1]


def test_every_table_has_the_speed_of_look_ups_beside_their_al() -> None:
    rows = random_rows(6)
    for one in rows:
        one["seconds"]["suffix/throughput"] = [0.25]
    made = evaluated({"one": rows})
    screen = Console(file=io.StringIO(), width=80)
    screen.print(overview(made))
    assert "4.00×" in screen.file.getvalue()  # type: ignore[attr-defined]
    head, _, first = evaluation_table(made).splitlines()[:3]
    cells = dict(zip(head.split(" | "), first.split(" | "), strict=True))
    assert cells["suffix, warmed: AL, speedup"].endswith(", 4.00×")
    overall = re.search(r"<table.*?</table>", page(made), re.S)
    assert overall and "speedup, suffix, warmed" in overall[0] and "4.00×" in overall[0]


def test_the_production_gap_stands_in_every_report() -> None:
    roles = {"task": "on task", "task 2": "on task", "users": "foreign"}
    made = evaluated({"task": even(3), "task 2": even(4), "users": even(2), "code": even(1)}, roles)
    told = "mine, T = 0: AL in domain 4.50, foreign 3.00, out of domain 2.00; production gap 1.50"
    assert made.gaps[0].text == told
    assert told in lines(made) and f"- {told}" in evaluation_table(made) and told in page(made)
    assert {gap.drafter for gap in made.gaps} == {"mine", "ngram", "suffix, warmed"}
    alone = evaluated({"users": even(2)}, roles)
    assert "in domain –, foreign 3.00" in alone.gaps[0].text
    assert evaluated({"task": even(3)}, roles).gaps == []


def test_the_terminals_table_fits_80_columns() -> None:
    made = evaluated({"one": random_rows(8), "a set with a long name": random_rows(6, 1)})
    screen = Console(file=io.StringIO(), width=80)
    screen.print(overview(made))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown and "yes" in shown
    assert any("accepted by position" in line for line in lines(made))


# -- before and after ------------------------------------------------------------------------------


def test_a_fall_of_more_than_the_limit_is_marked() -> None:
    before = evaluated({"task": even(2), "chat": even(2), "code": even(2)})
    after = evaluated({"task": even(3), "chat": even(1), "code": even(2)})
    assert regressions(before, after) == [
        "chat (out of domain, T = 0): AL 3.00 → 2.00 incl. bonus, -33.3%"
    ]
    assert regressions(before, after, limit=0.4) == []
    text = compare(before, after)
    assert (
        "| task | out of domain | 0 | 3.00 | 4.00 | +33.3% | +33.3% to +33.3% | 2.00× | 2.00× |  |"
    ) in text
    assert text.count("**fell by more than 5%**") == 1


def test_sets_that_only_one_has_are_named() -> None:
    before, after = evaluated({"a": even(1), "b": even(1)}), evaluated({"b": even(1), "c": even(1)})
    text = compare(before, after)
    assert "Only before: a (T = 0)." in text and "Only after: c (T = 0)." in text


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"model": "other"}, "before: got 'other'.*an evaluation of tiny"),
        (
            {"settings": {"tokens": 64, "seed": 0, "temperatures": [0.0]}},
            "before: got 'tokens 64'.*with tokens 256",
        ),
        ({"results": []}, "before: got .*a set in common"),
    ],
)
def test_what_cannot_be_compared_is_refused(before: dict, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        compare(evaluated({"a": even(1)}, **before), evaluated({"a": even(1)}))


def test_answers_too_short_to_count_a_round_cannot_be_compared() -> None:
    short = evaluated({"a": [row([1, 1, 1], name=f"p{i}", counted=1) for i in range(8)]})
    with pytest.raises(InvalidRequest, match=r"tokens: got 256.*count a round of 4 draft tokens"):
        compare(short, short)


def test_other_prompts_cannot_be_compared() -> None:
    with pytest.raises(InvalidRequest, match=r"before: got 'a'.*the same prompts"):
        regressions(evaluated({"a": even(1, 7)}), evaluated({"a": even(1, 8)}))


# -- the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "paceline-evaluation/9"}, r"evaluation: got 'a file'.*paceline-evaluation/1"),
        ({"results": 3}, r"a file\.results: got 3; expected a list"),
        ({"colour": "red"}, r"a file\.colour: unknown field"),
        (
            {"settings": {"tokens": 257, "temperatures": [0.0]}},
            r"a file\.settings\.tokens: got 257.*from 2 to 256",
        ),
        ({"settings": {"colour": 1, "temperatures": [0.0]}}, r"a file\.settings\.colour: unknown"),
        ({"settings": 3}, r"a file\.settings: got 3"),
    ],
)
def test_a_file_that_is_no_evaluation_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Evaluation.from_json(made_up({"a": even(1)}) | change, "a file")


def test_a_broken_number_of_a_file_is_refused_by_its_place() -> None:
    broken = made_up({"a": even(1)})
    broken["results"][0]["acceptance"]["drafter"]["al"] = "high"
    with pytest.raises(InvalidRequest, match=r"before\.results\[0\]\.acceptance\.drafter\.al"):
        Evaluation.from_json(broken, "before")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"before: got .*gone\.json.*a readable JSON file"):
        Evaluation.read_file(tmp_path / "gone.json", "before")
