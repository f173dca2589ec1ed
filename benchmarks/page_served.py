"""First paint of the tabs that need a model, and their screenshots: `paceline serve`, then
`python benchmarks/page_served.py http://127.0.0.1:8000 [--images docs/images]`.

They show what that server answers and measures. Needs Chromium, as benchmarks/page.py does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from page import LARGEST, chromium, first_paint, report

QUESTION = "Write a Python function that reverses a list, then write it again with type hints."
FORM = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": ["positive", "neutral", "negative"]},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "recommended": {"type": "boolean"},
    },
    "required": ["sentiment", "stars", "recommended"],
    "additionalProperties": False,
}
TRAFFIC = (QUESTION, "Give me three tips for sleeping better.", "List the planets. Then once more.")
REQUESTS, AT_ONCE = 18, 3
READY = {"playground": ".playground .ask", "live": ".live .tile"}
AUTOSPEC = ".autospec .body:not([hidden])"
WIDE, TALL = {"width": 1080, "height": 740}, {"width": 1280, "height": 1000}
PHONE = {"width": 390, "height": 844}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="a running server, as http://127.0.0.1:8000")
    parser.add_argument("--images", type=Path, help="folder to write pictures to")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument(
        "--autospec",
        action="store_true",
        help="only take a picture of the tab Autospec, of `serve --autospec` under traffic",
    )
    args = parser.parse_args()
    if args.autospec:
        with chromium() as browser:
            page = opened(browser, f"{args.url}/#autospec", WIDE, "light")
            page.wait_for_selector(".matrix td")
            page.click("text=3 hours, by minute")
            page.wait_for_timeout(2500)
            page.wait_for_selector(".cohort canvas")
            shoot(page, args.images / "web-autospec.png")
        return
    with chromium() as browser:
        for tab, ready in READY.items():
            address = f"{args.url}/#{tab}"
            report(
                f"first paint, {tab}",
                [first_paint(browser, address, ready) for _ in range(args.runs)],
            )
    if args.images is not None:
        take_pictures(args)


def take_pictures(args: argparse.Namespace) -> None:
    with chromium() as browser:
        for scheme, name in (("light", "web-playground"), ("dark", "web-playground-dark")):
            page = opened(browser, f"{args.url}/#playground", WIDE, scheme)
            ask(page, "both", QUESTION, seed="11", max_completion_tokens="96")
            shoot(page, args.images / f"{name}.png")
        page = opened(browser, f"{args.url}/#playground", PHONE, "light")
        page.click("summary:has-text('Settings')")
        form = json.dumps(FORM)
        ask(page, "on", "Judge: the food was wonderful, and so was the view.", response_format=form)
        shoot(page, args.images / "web-playground-phone.png")
        with ThreadPoolExecutor(AT_ONCE) as clients:
            sent = clients.map(lambda index: send(args.url, index), range(REQUESTS))
            page = opened(browser, f"{args.url}/#live", TALL, "light")
            finish(sent)
        page.wait_for_timeout(1500)
        shoot(page, args.images / "web-live.png")


def opened(browser: Any, address: str, viewport: dict[str, int], scheme: str) -> Any:
    page = browser.new_context(
        viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
    ).new_page()
    page.goto(address)
    page.wait_for_selector(", ".join([*READY.values(), AUTOSPEC]))
    return page


def ask(page: Any, mode: str, said: str, **settings: str) -> None:
    page.check(f'input[name="mode"][value="{mode}"]')
    for field, value in settings.items():
        page.fill(f'[data-field="{field}"] :is(input, textarea)', value)
    if page.viewport_size == PHONE:
        page.click("summary:has-text('Settings')")
    page.fill('[data-field="messages"] textarea', said)
    page.keyboard.press("Enter")
    page.wait_for_selector('.answer[data-state="done"]:last-child', timeout=300_000)


def send(url: str, index: int) -> None:
    """Every third request runs without speculation, as an application might ask for."""
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": TRAFFIC[index % len(TRAFFIC)]}],
        "max_completion_tokens": 64,
        "seed": index,
    }
    if index % 3 == 2:
        body["speculative"] = "off"
    httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).raise_for_status()


def finish(sent: Iterable[None]) -> None:
    """Waits for all, and raises what went wrong with one."""
    for _ in sent:
        pass


def shoot(page: Any, path: Path) -> None:
    page.wait_for_timeout(500)
    page.screenshot(path=path)
    page.context.close()
    size = path.stat().st_size
    if size > LARGEST:
        sys.exit(f"{path}: {size} bytes, more than {LARGEST}")
    print(f"{path}: {size} bytes")


if __name__ == "__main__":
    main()
