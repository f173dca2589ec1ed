"""The calculator's presets, pinned curves and pictures, as somebody meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.roofline.scenario import listed_presets

from .test_calculator import changed, expected, opened, settled, shown

Open = Callable[..., Any]


def test_a_preset_fills_the_whole_form_and_says_what_to_see(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    assert not page.is_visible("#calculator-see")
    for preset in listed_presets():
        changed(page, lambda name=preset["name"]: page.click(f".presets >> text={name}"))
        assert shown(page) == expected(**preset["scenario"])
        assert page.inner_text(".presets [aria-pressed=true]") == preset["name"]
        assert page.inner_text("#calculator-see") == preset["see"]
    page.wait_for_timeout(300)
    page.reload()
    settled(page)
    assert shown(page) == expected(**preset["scenario"])
    assert page.inner_text("#calculator-see") == preset["see"]


def test_a_preset_is_left_by_another_model_and_not_by_another_load(
    url: str, open_page: Open
) -> None:
    page = opened(open_page, url)
    changed(page, lambda: page.click(".presets >> text=DeepSeek-V4-Pro"))
    changed(page, lambda: page.fill("#calculator-batch", "64"))
    assert "U-shape" in page.inner_text("#calculator-see")
    changed(page, lambda: page.select_option("#calculator-model", "Qwen3.5-27B"))
    assert not page.is_visible("#calculator-see")
    assert not page.query_selector_all(".presets [aria-pressed=true]")
