"""The paired comparison, the load generator and their tables, with made-up answers."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.load.paired import Pair, compare, compare_load, run_load, same_text
from paceline.bench.prompts import BenchPrompt, load_prompts
from paceline.bench.report import tables
from paceline.core import InvalidRequest

PROMPTS = [
    BenchPrompt(name, "copying", ({"role": "user", "content": name},)) for name in ("one", "two")
]


def made_up(speculative: Any, last: int = 9) -> MeasuredAnswer:
    """Ten tokens, 40 ms each with speculation off and 10 ms each with it on."""
    step = 0.04 if speculative == "off" else 0.01
    counts = {} if speculative == "off" else {"drafted": DraftCounts(2, 8, 6)}
    arrivals = [0.1 + step * i for i in range(10)]
    ids = [*range(9), last]
    return MeasuredAnswer(
        started=0.0, token_ids=ids, arrivals=arrivals, finish_reason="stop", **counts
    )


def shown(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def compared(last: int = 9) -> tuple[list[Pair], list[tuple[str, Any]]]:
    asked: list[tuple[str, Any]] = []

    async def ask(prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        asked.append((prompt.name, speculative))
        return made_up(speculative, last if speculative is None and prompt.name == "two" else 9)

    return asyncio.run(compare(PROMPTS, ask, runs=2)), asked


def test_off_and_on_take_turns_at_going_first() -> None:
    _, asked = compared()
    assert asked[:4] == [("one", "off"), ("one", None), ("two", None), ("two", "off")]
    assert asked[4:] == [("one", None), ("one", "off"), ("two", "off"), ("two", None)]


def test_the_table_shows_ratio_acceptance_length_and_equality() -> None:
    pairs, _ = compared()
    text = shown(tables.pair_table(pairs, "title"))
    for cell in ("TTFT", "TPOT", "40.0", "10.0", "4.00×", "4.00", "100", "yes"):
        assert cell in text
    assert "speedup, copying: 4.00×" in tables.speedup_lines(pairs)[0]


def test_one_different_token_is_reported() -> None:
    pairs, _ = compared(last=1234)
    assert [pair.same_text for pair in pairs] == [True, False]
    assert "no" in shown(tables.pair_table(pairs, "title"))
    assert tables.same_text_line(False) == "same text: no"


def test_a_different_finish_reason_is_a_different_text() -> None:
    pairs, _ = compared()
    pairs[0].on[0].finish_reason = "length"
    assert not pairs[0].same_text


def test_load_keeps_no_more_than_the_asked_requests_in_flight() -> None:
    running, most = 0, 0

    async def ask(prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return made_up(speculative)

    settings = {"requests": 7, "concurrency": 3}
    off = asyncio.run(run_load(PROMPTS, ask, speculative="off", **settings))
    on = asyncio.run(run_load(PROMPTS, ask, speculative=None, **settings))
    assert most == 3
    assert off.tokens == on.tokens == 70
    assert on.acceptance_length == 4.0
    assert same_text(off, on)
    on.answers[3].token_ids[2] = 77
    assert not same_text(off, on)
    assert "output tok/s" in shown(tables.load_table(off, on, "title"))


def test_the_shipped_set_has_every_kind() -> None:
    prompts = load_prompts("demo")
    assert len({prompt.name for prompt in prompts}) == len(prompts) >= 8
    assert {prompt.kind for prompt in prompts} == {"copy-heavy", "summary", "plain chat"}


@pytest.mark.parametrize(
    "text", ["{", "[]", '[{"name": "a"}]', '[{"name": "a", "kind": "b", "messages": ["hi"]}]']
)
def test_a_bad_prompt_file_is_refused_by_name(tmp_path: Any, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=r"prompts.*mine\.json"):
        load_prompts(str(path))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("own.json", '[{"name": "a", "kind": "b", "messages": [{"role": "user", "content": '
                     '"x"}]}]'),
        ("data.jsonl", '{"prompt": "x"}\n\n{"turns": ["y", "and z"], "id": 7}\n'),
        ("share.json", '[{"conversations": [{"from": "system", "value": "be kind"}, {"from": '
                       '"human", "value": "x"}, {"from": "gpt", "value": "no"}]}]'),
        ("share.jsonl", '{"conversations": [{"from": "human", "value": "x"}]}'),
        ("lines.txt", "x\n\n  y\n"),
        ("texts.jsonl", '"x"\n"y"\n'),
    ],
)  # fmt: skip
def test_files_of_prompts_in_the_forms_of_data_sets(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    prompts = load_prompts(str(tmp_path / file))
    asked = [prompt.messages[-1] for prompt in prompts]
    assert asked[0] == {"role": "user", "content": "x"}
    assert [message["content"] for message in asked[1:]] in ([], ["y"])
    if file == "share.json":
        assert prompts[0].messages[0] == {"role": "system", "content": "be kind"}
    names = [(prompt.name, prompt.kind) for prompt in prompts]
    stem = file.partition(".")[0]
    assert names[0] == (("a", "b") if file == "own.json" else (f"{stem}#1", stem))
    assert file not in ("data.jsonl", "lines.txt") or names[1][0] == f"{stem}#3"


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"text": "x"}\n', "a.jsonl:2"),
        ("a.jsonl", '{"conversations": [{"from": "martian", "value": "x"}]}', "a.jsonl:1"),
        ("a.json", '[{"prompt": "x"}, {"prompt": ""}]', "a.json:2"),
        ("a.txt", "\n \n", "at least one prompt"),
    ],
)
def test_a_record_that_asks_nothing_is_named(
    tmp_path: Path, file: str, text: str, place: str
) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(InvalidRequest, match=place.replace(".", r"\.")):
        load_prompts(str(tmp_path / file))


def test_an_unknown_prompt_set_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="demo"):
        load_prompts("nothing-like-it")


def test_when_time_is_short_there_are_fewer_runs_but_whole_ones() -> None:
    async def slow(prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        await asyncio.sleep(0.01)
        return made_up(speculative)

    pairs = asyncio.run(compare(PROMPTS, slow, runs=50, seconds=0.1))
    counts = {len(runs) for pair in pairs for runs in (pair.off, pair.on)}
    assert len(counts) == 1 and 1 <= counts.pop() <= 3


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    pairs, _ = compared()
    assert "…" not in shown(tables.pair_table(pairs, "title"))


def test_who_drafted_is_summed_over_the_runs_of_a_kind() -> None:
    pairs, _ = compared()
    assert tables.parts_tables(pairs) == []
    for pair in pairs:
        for answer in pair.on:
            answer.parts = {"dflash": DraftCounts(3, 20, 6)}
    pairs[0].on[0].parts["suffix"] = DraftCounts(rounds=2, tokens=10, accepted=7)
    (table,) = tables.parts_tables(pairs)
    rows = [line.split() for line in shown(table).splitlines() if "copying" in line]
    assert rows == [
        ["copying", "dflash", "12", "24", "80", "3.00"],
        ["copying", "suffix", "2", "7", "10", "4.50"],
    ]


def test_load_without_and_with_speculation_takes_turns() -> None:
    asked: list[Any] = []

    async def ask(prompt: BenchPrompt, speculative: Any) -> MeasuredAnswer:
        asked.append(speculative)
        return made_up(speculative)

    wish = {"max_draft_len": 3}
    settings = {"runs": 2, "concurrency": 3, "speculative": wish}
    off, on = asyncio.run(compare_load(PROMPTS, ask, **settings))
    assert asked == ["off"] * 6 + [wish] * 12 + ["off"] * 6
    assert len(off.answers) == len(on.answers) == 12 and same_text(off, on)
