"""The calculator's presets, pinned curves and pictures, as somebody meets them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

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


def best_by_batch(page: Any) -> dict[str, list[str]]:
    """The columns of the table under “Best speedup by batch”."""
    figure = page.locator("figure:has(h3:text-is('Best speedup by batch'))")
    figure.scroll_into_view_if_needed()
    if not figure.locator("table").count():
        figure.locator(".numbers summary").click()
    lines = figure.locator("table").inner_text().splitlines()
    rows = [line.split("\t") for line in lines]
    return {head.strip(): [row[index] for row in rows[1:]] for index, head in enumerate(rows[0])}


def test_a_pinned_curve_stays_when_the_model_changes_and_in_the_link(
    url: str, open_page: Open
) -> None:
    page = opened(open_page, url)
    changed(page, lambda: page.click(".presets >> text=DeepSeek-V4-Pro"))
    page.click("#calculator-pin")
    told = "Pinned: DeepSeek-V4-Pro, 8 devices (batch 8, context 4096)"
    page.wait_for_selector(f".pinned:text-is('{told}')")
    before = best_by_batch(page)
    assert before["DFlash, pinned"] == before["DFlash, calibrated"]
    changed(page, lambda: page.select_option("#calculator-model", "Qwen3.5-27B"))
    after = best_by_batch(page)
    assert after["MTP, pinned"] == before["MTP, pinned"]
    assert after["DFlash, calibrated"] != after["DFlash, pinned"] == before["DFlash, pinned"]
    page.wait_for_timeout(300)
    page.reload()
    settled(page)
    page.wait_for_selector(f".pinned:text-is('{told}')")
    assert best_by_batch(page) == after
    page.click("#calculator-unpin")
    page.wait_for_function("!location.hash.includes('pin=')")
    assert "DFlash, pinned" not in best_by_batch(page) and not page.is_visible(".pinned")


def test_a_pin_that_cannot_be_drawn_says_so(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    packed = page.evaluate(
        "import('./web/lib/pack.js').then(({ pack }) => pack('model=served&hardware=B200'))"
    )
    page.goto(f"{url}/#calculator?batch=8&pin={packed}")
    page.wait_for_selector(".pinned:has-text('This link is of a page that serves a model')")
    rates = expected(batch=8)
    page.wait_for_selector(f".result-card .big:has-text('{rates[0]}')")
    assert shown(page) == rates
    page.goto(f"{url}/#calculator?batch=4&pin=broken")
    page.wait_for_selector(".notice:has-text('This link is broken')")
    assert not page.is_visible(".pinned")


# the colours of a picture, by how many pixels have them, in its upper part (title and legend) and
# below it (the plot); the style sheet's colours as the canvas has them
PIXELS = """async ([data, names]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${data}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const ctx = canvas.getContext("2d");
  ctx.drawImage(image, 0, 0);
  const counts = (top, bottom) => {
    const { data } = ctx.getImageData(0, top, image.width, bottom - top);
    const found = {};
    for (let i = 0; i < data.length; i += 4) {
      const text = `rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})${data[i + 3] < 255}`;
      found[text] = (found[text] ?? 0) + 1;
    }
    return found;
  };
  const { colour } = await import("./web/lib/colours.js");
  const plot = image.height - 400;
  return {
    width: image.width, head: counts(0, plot), plot: counts(plot, image.height),
    named: Object.fromEntries(names.map((name) => [name, `${colour(name)}false`])),
  };
}"""


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_a_chart_is_saved_as_a_picture_with_title_legend_and_background(
    url: str, open_page: Open, scheme: str
) -> None:
    page = opened(open_page, url, color_scheme=scheme)
    for title, colours in {
        "Best speedup by batch": ["--series-1", "--series-2"],
        "Speedup by batch and draft length": ["--ink"],
    }.items():
        figure = page.locator(f"figure:has(h3:text-is('{title}'))")
        figure.scroll_into_view_if_needed()
        save = figure.get_by_role("button", name=f"Save PNG of “{title}”")
        expect(save).to_be_enabled()
        with page.expect_download() as download:
            save.press("Enter")
        assert download.value.suggested_filename == f"{title.lower().replace(' ', '-')}.png"
        content = base64.b64encode(download.value.path().read_bytes()).decode()
        names = ["--card", "--ink", "--soft", *colours]
        found = page.evaluate(PIXELS, [content, names])
        named, head, plot = found["named"], found["head"], found["plot"]
        assert found["width"] == 760 + 2 * 16
        assert all(colour.endswith("false") for colour in {**head, **plot})  # nothing transparent
        assert max(head, key=head.get) == named["--card"]
        assert head[named["--ink"]] > 50 and head[named["--soft"]] > 50
        assert all(plot.get(named[colour], 0) > 50 for colour in colours)
