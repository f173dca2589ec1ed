"""The terminal's tables of comparisons and loads, from answers that are made up."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from paceline.bench.load.answers import DraftCounts, MeasuredAnswer
from paceline.bench.load.paired import Load, Pair
from paceline.bench.prompts import BenchPrompt
from paceline.bench.report import tables, words
from paceline.core.rounds import acceptance_length


def answer(step: float, tokens: int = 10, drafted: DraftCounts | None = None) -> MeasuredAnswer:
    arrivals = [0.5 + step * index for index in range(tokens)]
    made = MeasuredAnswer(0.0, list(range(tokens)), arrivals, finish_reason="stop")
    made.drafted = drafted or DraftCounts(0, 0, 0)
    return made


def pair(name: str, kind: str, on: float) -> Pair:
    prompt = BenchPrompt(name, kind, ({"role": "user", "content": name},))
    return Pair(prompt, [answer(0.04)], [answer(on, drafted=DraftCounts(2, 8, 6))])


def shown(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_acceptance_length_is_tokens_per_drafted_round() -> None:
    assert acceptance_length(6, 2) == 4.0
    assert acceptance_length(0, 0) is None
    assert DraftCounts(0, 0, 0).acceptance_length is None
    counts = [DraftCounts(1, 4, 4), DraftCounts(3, 12, 0)]
    assert DraftCounts.total(counts) == DraftCounts(4, 16, 4)
    assert DraftCounts.total(counts).acceptance_length == 2.0  # pooled, not the mean of both
    assert DraftCounts.total([]) == DraftCounts(0, 0, 0)


def test_kinds_keep_their_order_and_their_speedups_are_geometric_means() -> None:
    pairs = [pair("a", "chat", 0.02), pair("b", "code", 0.01), pair("c", "chat", 0.005)]
    assert tables.speedup_lines(pairs) == [
        "speedup, chat: 4.00× (geometric mean of 2 prompts)",
        "speedup, code: 4.00× (geometric mean of 1 prompt)",
    ]
    text = shown(tables.pair_table(pairs, "title"))
    assert text.index("chat") < text.index(" a ") < text.index(" c ") < text.index("code")


def test_a_load_is_compared_with_the_one_without_speculation() -> None:
    off = Load([answer(0.04), answer(0.04)], seconds=4.0)
    on = Load([answer(0.01, drafted=DraftCounts(3, 9, 6)), answer(0.01)], seconds=2.0)
    assert (off.throughput, on.throughput) == (5.0, 10.0)
    assert on.acceptance_length == 3.0 and off.acceptance_length is None
    text = shown(tables.load_table(off, on, "title"))
    assert "2.00×" in text and "500 ms" in text and "10.0 ms" in text


def test_loads_add_up() -> None:
    total = Load()
    total.add(Load([answer(0.01)], 1.0))
    total.add(Load([answer(0.03)], 3.0))
    assert (total.tokens, total.seconds, total.tpot) == (20, 4.0, pytest.approx(0.02))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (words.number(None), "–"),
        (words.number(1.234, "×"), "1.23×"),
        (words.with_interval(2.0, (1.5, 2.5), "×"), "2.00× (1.50–2.50)"),
        (words.with_interval(2.0, None), "2.00"),
        (words.percent(0.256), "26%"),
        (words.percent(None), "–"),
        (words.change(0.95), "-5.0%"),
        (words.count(1, "thread"), "1 thread"),
        (words.count(3, "thread"), "3 threads"),
        (words.tokens_short(512), "512"),
        (words.tokens_short(2048), "2k"),
        (words.cell("a|b"), "a\\|b"),
    ],
)
def test_numbers_are_written_one_way(written: str, expected: str) -> None:
    assert written == expected
