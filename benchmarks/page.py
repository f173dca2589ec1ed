"""How fast the web page is, and its screenshots: `python benchmarks/page.py [--images FOLDER]`.

First paint is what Chromium itself reports, of a page that it has never seen. A slider's answer is
the time from a step of it until the frame in which the new numbers stand: the request, the
prediction in Python, and drawing what hangs on the batch that is set; charts over all batches
follow once the slider rests. Needs Chromium (PACELINE_CHROMIUM, or on the path).
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image  # comes with the extra `plot`

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.web.conftest import ARGUMENTS, chromium_path, ui_server

READY = {"calculator": ".result-card", "timing": "#timing-play:enabled"}
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
# a step of the slider, then the frame after the summary has changed
SLIDE = """step => new Promise(resolve => {
  const slider = document.querySelector('#calculator-batch-range');
  const started = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - started)));
  }).observe(document.querySelector('.summary'), { childList: true });
  slider.value = Number(slider.value) + step;
  slider.dispatchEvent(new Event('input'));
})"""
WIND = """ms => {
  const seek = document.querySelector('#timing-seek');
  seek.value = ms;
  seek.dispatchEvent(new Event('input'));
}"""
SCENE = (  # the preset of a large mixture of experts
    "#calculator?model=DeepSeek-V4-Pro&hardware=B200&tensor_parallel=8&batch=8"
    "&drafter=kind:dflash~name:DFlash~form:alpha~alpha:0.89~cost:10~block:15"
    "&drafter=kind:mtp~name:MTP~form:alpha~alpha:0.75~cost:10"
)
# name, place, width, height, colours
SHOTS = (
    ("web-calculator", SCENE, 1280, 1140, "light"),
    ("web-calculator-views", SCENE, 1280, 1000, "light"),
    ("web-calculator-dark", SCENE, 1280, 1140, "dark"),
    ("web-calculator-phone", SCENE, 390, 844, "light"),
    ("web-timing", "#timing", 1280, 960, "light"),
    ("web-timing-dark", "#timing", 1280, 960, "dark"),
)
LARGEST = 150_000  # bytes of a picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, help="folder to write the screenshots to")
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args()
    with chromium() as browser, ui_server() as url:
        for tab in READY:
            paints = [first_paint(browser, f"{url}/#{tab}", READY[tab]) for _ in range(args.runs)]
            report(f"first paint, {tab}", paints)
        report("slider, to the drawn answer", slides(browser, url, args.runs))
        if args.images:
            for shot in SHOTS:
                print(screenshot(browser, url, args.images, *shot))


def report(what: str, times: list[float]) -> None:
    middle, most = statistics.median(times), max(times)
    print(f"{what}: median {middle:.0f} ms, slowest {most:.0f} ms of {len(times)}")


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        sys.exit("no Chromium: put one on the path, or its path into PACELINE_CHROMIUM")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))


def first_paint(browser: Any, address: str, ready: str) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(ready)
    paint = float(page.evaluate(PAINT))
    context.close()
    return paint


def slides(browser: Any, url: str, runs: int) -> list[float]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"{url}/#calculator")
    page.wait_for_selector(READY["calculator"])
    times = []
    for run in range(runs):
        times.append(float(page.evaluate(SLIDE, 1 if run % 12 < 6 else -1)))
        page.wait_for_timeout(600)  # the charts over batches have come, too
    context.close()
    return times


def screenshot(
    browser: Any,
    url: str,
    folder: Path,
    name: str,
    place: str,
    width: int,
    height: int,
    scheme: str,
) -> str:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(f"{url}/{place}")
    tab = place[1:].split("?")[0]
    page.wait_for_selector(READY[tab])
    if tab == "timing":
        page.evaluate(WIND, 1400)
    if name.endswith("views"):
        page.evaluate("document.querySelector('.charts .card:nth-child(6)').scrollIntoView()")
        page.mouse.wheel(0, -75)  # from under the bar
    page.wait_for_timeout(500)
    path = folder / f"{name}.png"
    picture = Image.open(io.BytesIO(page.screenshot()))
    context.close()
    picture.convert("RGB").quantize(256).save(path, optimize=True)
    size = path.stat().st_size
    if size > LARGEST:
        sys.exit(f"{path}: {size} bytes, more than {LARGEST}")
    return f"{path}: {size} bytes"


if __name__ == "__main__":
    main()
