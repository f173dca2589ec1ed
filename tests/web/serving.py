"""Real servers of a tiny random model for the tabs that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.conftest import listening
from tests.server.test_real_engine import tiny_engine

Open = Callable[..., Any]
LOOP = "abcabcabcabcabcabcabcabcabcabc"  # a prompt that repeats itself, so that n-grams draft


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with listening(tiny_engine()) as running:
        yield running.url


def ready(open_page: Open, address: str, **options: Any) -> Any:
    """Opens the playground, and waits until it takes a question."""
    page = open_page(f"{address}/#playground", **options)
    page.wait_for_selector("#panel-playground .ask")
    return page


def choose(page: Any, mode: str, **fields: str) -> None:
    """Sets the playground's settings by the names that the server's errors use."""
    page.check(f'input[name="mode"][value="{mode}"]')
    for field, value in fields.items():
        page.fill(f'[data-field="{field}"] :is(input, textarea)', value)


def say(page: Any, text: str) -> None:
    page.fill('[data-field="messages"] textarea', text)
    page.keyboard.press("Enter")


def answers(page: Any, state: str, count: int = 1) -> list[Any]:
    """The answers in this state, once there are as many."""
    selector = f'.answer[data-state="{state}"]'
    page.wait_for_function(
        "([selector, count]) => document.querySelectorAll(selector).length >= count",
        arg=[selector, count],
    )
    return page.query_selector_all(selector)
