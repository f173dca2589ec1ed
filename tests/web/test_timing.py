"""The timing tab, played, stopped and wound as a person would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .conftest import ui_server

Open = Callable[..., Any]
SLOW = "#timing?ar=100&spec=200&al=2&g=3&ttft=100&n=200&text=code"  # AR ends after 2.09 s
LONG = "#timing?ar=20&spec=40&al=2&g=3&ttft=0&n=4000"  # nothing ends while a test looks


def opened(open_page: Open, url: str, place: str = SLOW, **options: Any) -> Any:
    """Opens the tab for a reader who wants no motion, so that nothing plays by itself."""
    page = open_page(f"{url}/{place}", **{"reduced_motion": "reduce", **options})
    page.wait_for_selector("#timing-play:enabled")
    return page


def tokens(page: Any) -> list[int]:
    panes = page.query_selector_all(".pane")
    return [int(pane.get_attribute("data-tokens")) for pane in panes]


def seek(page: Any, ms: float) -> None:
    page.locator("#timing-seek").fill(str(ms))


def wound(page: Any, ms: float) -> list[int]:
    """The tokens at `ms`, once the run that was asked for is shown."""
    page.wait_for_selector(".race[aria-busy=false]")
    seek(page, ms)
    return tokens(page)


def test_winding_shows_what_had_arrived_by_then(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    assert tokens(page) == [200, 200], "without motion the end is shown"
    seek(page, 99)
    assert tokens(page) == [0, 0]
    seek(page, 601)
    plain, drafted = tokens(page)
    assert plain == 51 and drafted > 70
    assert page.inner_text(".pane .played").startswith("def merge_intervals")
    seek(page, 200)
    assert tokens(page)[0] == 11  # and back again
    seek(page, 2100)
    assert tokens(page) == [200, 200]
    left, right = (pane.inner_text() for pane in page.query_selector_all(".played"))
    assert left == right  # the same text, however it came
    assert "Speculation was done after" in page.inner_text(".result")


def test_nothing_can_be_played_before_the_first_run_is_there(url: str, open_page: Open) -> None:
    page = open_page(url + "/", reduced_motion="reduce")
    held: list[Any] = []
    page.route("**/ui/timing", lambda route: held.append(route))
    with page.expect_request("**/ui/timing"):
        page.goto(f"{url}/{SLOW}")
    assert page.is_disabled("#timing-play")
    held.pop().continue_()
    page.wait_for_selector("#timing-play:enabled")
    assert tokens(page) == [200, 200]


def test_it_plays_at_the_pace_of_the_clock(url: str, open_page: Open) -> None:
    page = open_page(url + "/", reduced_motion="reduce")
    page.clock.install(time=0)
    page.goto(f"{url}/{SLOW}")
    page.wait_for_selector("#timing-play:enabled")
    assert wound(page, 601)[0] == 51
    seek(page, 0)
    page.clock.pause_at(60_000)
    page.click("#timing-play")
    page.clock.run_for(1000)
    plain, _ = tokens(page)
    assert 89 <= plain <= 92  # (1000 - 100) / 10 + 1, give or take a frame
    page.select_option("#timing-speed", "0.25")
    page.clock.run_for(1000)
    assert 114 <= tokens(page)[0] <= 118  # a quarter of 100 more
    page.click("#timing-play")
    stopped = tokens(page)
    page.clock.run_for(1000)
    assert tokens(page) == stopped
    page.click("#timing-restart")
    page.select_option("#timing-speed", "4")
    page.clock.run_for(1000)
    assert tokens(page) == [200, 200]


def test_a_race_stops_when_the_first_is_done(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.check("#timing-race")
    page.select_option("#timing-speed", "4")
    page.focus(".played")
    page.keyboard.press("Space")
    page.wait_for_selector(".badge:visible")
    plain, drafted = tokens(page)
    assert drafted == 200 and plain < 150
    assert page.inner_text("#timing-play").endswith("Play")


def test_it_plays_when_it_is_first_seen_and_not_behind_another_tab(
    url: str, open_page: Open
) -> None:
    page = open_page(f"{url}/#calculator")
    page.wait_for_selector("#calculator-form")
    page.evaluate(f"location.hash = '{LONG}'")
    page.wait_for_function("() => document.querySelector('.pane')?.dataset.tokens > 5")
    assert page.inner_text("#timing-play").endswith("Pause")
    page.click("#tab-calculator")
    page.wait_for_selector("#panel-timing", state="hidden")
    assert "Play" in page.text_content("#timing-play")
    page.click("#tab-timing")
    stopped = tokens(page)
    page.wait_for_timeout(200)
    assert tokens(page) == stopped, "only the first sight starts it"


def test_a_phone_shows_both_panes_and_the_controls_on_one_screen(url: str, open_page: Open) -> None:
    page = opened(open_page, url, "#timing", viewport={"width": 390, "height": 844})
    page.wait_for_selector(".result:not(:empty)")
    parts = ("#timing-play", "#timing-seek", ".pane", ".pane.speculative", ".race .result")
    boxes = [page.locator(part).first.bounding_box() for part in parts]
    assert all(box["y"] >= 0 and box["y"] + box["height"] <= 844 for box in boxes), boxes
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes), boxes


def test_every_preset_plays_the_speeds_that_its_label_says(url: str, open_page: Open) -> None:
    page = opened(open_page, url, "#timing")
    presets = page.locator(".presets button")
    assert presets.count() == 4
    for index in range(presets.count()):
        label = presets.nth(index).inner_text()
        plain, drafted = map(int, re.search(r"(\d+) against (\d+)", label).groups())
        with page.expect_response(lambda answer: answer.url.endswith("/ui/timing")):
            presets.nth(index).click()
        page.wait_for_function(
            "([plain, drafted]) => [...document.querySelectorAll('.pane dl > div:first-child dd')]"
            ".map((rate) => rate.textContent.replace(',', '')).join() === `${plain},${drafted}`",
            arg=[plain, drafted],
        )
        said = page.inner_text(".race .result")
        first = "Speculation" if drafted > plain else "Plain decoding"
        assert said.startswith(f"{first} was done after"), said
        assert said.split(". ")[-1].startswith(f"{first} was "), said
        rates, ttft = (plain, drafted), float(page.input_value("#timing-ttft")) / 1e3
        steps = int(page.input_value("#timing-n")) - 1
        fast, slow = sorted(ttft + steps / rate for rate in rates)
        assert f"was {slow / fast:.2f}× as fast" in said, said
        asked = float(page.input_value("#timing-al"))
        shown = float(page.inner_text(".speculative dl > div:last-child dd"))
        assert shown == pytest.approx(asked, abs=0.5 * asked**2 / steps + 0.006), label


def test_bursts_are_marked_as_drafted_and_bonus(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    seek(page, 2100)
    assert page.query_selector_all(".speculative .played .drafted")
    assert page.query_selector_all(".speculative .played .own")
    assert not page.query_selector_all(".pane:not(.speculative) .drafted")
    assert page.inner_text(".speculative dl > div:last-child dt") == "AL incl. bonus"
    al = float(page.inner_text(".speculative dl > div:last-child dd"))
    assert al == pytest.approx(2, abs=0.02)  # 199 tokens in 100 rounds


def test_a_preset_and_a_reload_give_the_same_run(url: str, open_page: Open) -> None:
    page = opened(open_page, url, "#timing")
    page.click("text=27B on a B200")
    before = wound(page, 4000)
    assert before[0] < before[1]
    assert page.input_value("#timing-spec") == "268"
    page.reload()
    page.wait_for_selector("#timing-play:enabled")
    assert page.input_value("#timing-spec") == "268"
    assert wound(page, 4000) == before


def test_ones_own_text_is_played(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.select_option("#timing-text", "own")
    page.fill(".own-text", "Guten Morgen! ")
    seek(page, 2100)
    assert page.inner_text(".played").startswith("Guten Morgen! Guten Morgen!")


def test_a_recorded_run_is_played_as_it_was(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.click("text=Play a recorded run")
    run = {"arrivals_ms": {"ar": [50, 60, 70, 80], "speculative": [50, 64, 64, 64]}}
    page.fill("#timing-recorded", json.dumps(run))
    page.click("text=Play it")
    page.wait_for_selector("text=Playing a recorded run")
    assert wound(page, 64) == [2, 4]
    last = page.inner_text(".speculative dl > div:last-child").split("\n")
    assert sorted(last) == ["3.00", "tokens per burst"]  # nobody knows what was drafted
    page.click("text=Use the fields instead")
    page.wait_for_selector(".given", state="hidden")
    assert wound(page, 601)[0] == 51


def test_a_recorded_bench_is_played_run_by_run(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.click("text=Play a recorded run")
    times = {"off": [50, 60, 70, 80], "on": [50, 64, 64, 64]}
    lines = [
        {"format": "paceline-arrivals/1", "prompt": "fox", "speculation": speculation, "run": run,
         "arrivals_ms": [at + 100 * run for at in times[speculation]]}
        for speculation in ("off", "on") for run in (0, 1)
    ]  # fmt: skip
    page.fill("#timing-recorded", "\n".join(json.dumps(line) for line in lines))
    page.click("text=Play it")
    page.wait_for_selector("#timing-row:visible")
    seek(page, 64)
    assert tokens(page) == [2, 4]
    page.select_option("#timing-row", label="fox, run 1")
    page.wait_for_selector("#timing-seek[max='180']")
    seek(page, 164)
    assert tokens(page) == [2, 4]


BAD = [
    ("ar", "-5", "ar_tokens_per_second: got -5"),
    ("al", "9", "al: got 9"),
    ("n", "0", "tokens: got 0"),
    ("g", "", "draft_length"),
]


def test_what_is_wrong_is_said_at_its_field_and_nothing_plays(url: str, open_page: Open) -> None:
    open_page.expect("400")  # type: ignore[attr-defined]
    page = opened(open_page, url)
    for field, value, said in BAD:
        page.fill(f"#timing-{field}", value)
        error = page.locator(f".field:has(#timing-{field}) .error")
        error.wait_for(state="visible")
        assert said in error.inner_text()
        assert page.is_disabled("#timing-play") and tokens(page) == [0, 0]
        page.fill(f"#timing-{field}", "3")
        page.wait_for_selector("#timing-play:enabled")
        assert not error.is_visible()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tokens": 5, "speed": 1}, "speed"),
        ({"evaluation": {"format": "other/1"}}, "evaluation"),
        ({"evaluation": {"format": "paceline-evaluation/1"}}, "evaluation"),
        ({"arrivals_ms": {"ar": [3, 2], "speculative": [1]}}, "arrivals_ms.ar"),
        ({"arrivals_ms": [1, 2]}, "arrivals_ms"),
        ({"recorded": [{"format": "other/1"}]}, "recorded[0]"),
        ({"recorded": []}, "recorded"),
    ],
)
def test_a_wrong_body_is_refused_by_name(body: Any, field: str) -> None:
    with ui_server() as address:
        answer = httpx.post(address + "/ui/timing", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field
