"""What a command shows where no terminal is: that it works, and tables that are not cut."""

from __future__ import annotations

import pytest
from rich.table import Table

from paceline.cli import show


def test_a_line_now_and_then_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    with show.progress() as bars:
        task = bars.add_task("answers", total=40, speed="90 tokens/s")
        for _ in range(31):
            bars.advance(task)
            now[0] += 2
        now[0] += show.SILENCE
        bars.update(task, advance=0, description="the last one")
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" in ")[0] for line in told] == [
        "answers: 16 of 40", "answers: 31 of 40", "the last one: 31 of 40",
    ]  # fmt: skip
    assert told[0].endswith("min, 90 tokens/s")


@pytest.mark.parametrize(("columns", "cut"), [(None, False), ("60", True)])
def test_a_table_is_cut_only_where_somebody_said_how_wide_it_may_be(
    columns: str | None,
    cut: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    table = Table(*[f"column {number}" for number in range(9)])
    table.add_row(*["support-phrases"] * 9)
    show.report_console().print(table)
    assert ("support-phrases" not in capsys.readouterr().out) == cut
