"""The Training tab of `paceline ui`, with logs of runs in their folders."""

from __future__ import annotations

from pathlib import Path

from paceline.dataset.folder_lock import locked
from paceline.dataset.run_log import LOG
from tests.cli.test_watch import score, step, write

from .conftest import ui_server
from .serving import Open


def test_runs_are_shown_and_followed(tmp_path: Path, open_page: Open) -> None:
    forecast = {"forecast/al": 2.5, "forecast/low": 2.4, "forecast/high": 2.75}
    gap = {"foreign/shop/al": 1.5, "gap/shop": 0.25}
    going = write(
        tmp_path / "going", score(0, 1.0), step(10), {**score(20, 1.75), **forecast, **gap}
    )
    ended = write(tmp_path / "ended", score(0, 1.0), {**score(5, 2.25), "regression/code": 0.07})
    broken = write(tmp_path / "broken", step(10))
    (broken / LOG).write_text("{\n")
    with locked(going), ui_server(runs=[going, broken, ended]) as url:
        page = open_page(f"{url}/#training")
        card = page.locator(f'[data-run="{going}"]')
        card.get_by_text("15 min left").wait_for()
        text = card.inner_text()
        for words in (
            "Step 20", "Loss 8.000 nats", "1,234 slots/s", "8 % of the matmul peak",
            "drafter 10", "AL 2.50 (2.40 to 2.75)", "shop, held out", "code, out of domain",
            "Production gap of shop: AL 0.25, held out minus foreign.",
        ):  # fmt: skip
            assert words in text, (words, text)
        row = card.locator("tr", has_text="shop, held out").locator("td").all_inner_texts()
        assert row == ["1.75", "1.75", "50 %", "25 %"]
        assert card.locator(".state").inner_text() == "training"
        write(going, {"step": 21, "decay_steps": 9.0}, step(30))
        card.get_by_text("training; the learning rate falls").wait_for()
        assert "Step 30" in card.inner_text() and "Loss 6.000 nats" in card.inner_text()
        other = page.locator(f'[data-run="{ended}"]').inner_text()
        assert "no process is training in this folder" in other
        assert "AL fell by 7 % on code" in other
        assert page.locator(".training canvas").count() == 4
        told = page.inner_text(".training")
        assert str(broken) in told and "line 1 is none" in told


def test_without_a_run_the_page_says_how_to_start_it(open_page: Open) -> None:
    with ui_server() as url:
        page = open_page(f"{url}/#training")
        page.get_by_text("paceline ui --training RUN").wait_for()
