"""A real Chromium at a real server. Every page is watched: a console error, or a request to anybody
but that server, fails the test that caused it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.server.run import UiServer
from paceline.server.settings import ServerSettings

VARIABLE = "PACELINE_CHROMIUM"  # the browser's path; where it is set these tests run or fail
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium_path() -> str | None:
    return os.environ.get(VARIABLE) or shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def ui_server(runs: Sequence[Path] = (), **settings: Any) -> Iterator[str]:
    """`paceline ui` on a free loopback port, on a thread; gives its URL."""
    ready = threading.Event()
    server = UiServer(ServerSettings(port=0, **settings), lambda _: ready.set(), runs)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()))
    thread.start()
    try:
        assert ready.wait(20)
        yield server.url
    finally:
        server.stop()
        thread.join(20)


@pytest.fixture(scope="module")  # its event loop must not outlive these tests
def browser() -> Iterator[Any]:
    path = chromium_path()
    if path is None:
        pytest.skip(f"no Chromium on the path; set {VARIABLE} to one")
    if not os.environ.get(VARIABLE):
        pytest.importorskip("playwright", reason="playwright is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ui_server() as address:
        yield address


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page at an address; options are those of Playwright's new_context()."""
    contexts, faults, allowed = [], [], []

    def open_(address: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        host = address.split("/")[2]
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda r: faults.append(f"asked {r.url}") if _strange(r.url, host)
                else None)  # fmt: skip
        page.goto(address)
        return page

    open_.expect = allowed.append  # type: ignore[attr-defined]
    yield open_
    for context in contexts:
        context.close()
    left = [text for text in faults if not any(known in text for known in allowed)]
    assert not left, left


def _strange(url: str, host: str) -> bool:
    scheme, _, rest = url.partition(":")
    return scheme not in ("data", "blob") and not rest.startswith(f"//{host}/")
