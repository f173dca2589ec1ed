"""The calculator of a page that serves a model: it starts with that model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.server import this_server
from paceline.server.errors import ApiError

from .serving import served as served
from .test_calculator import FIRST, changed, opened

Open = Callable[..., Any]


def test_a_server_s_page_starts_with_what_it_runs(served: str, open_page: Open) -> None:
    page = opened(open_page, served)
    assert page.input_value("#calculator-model") == "served"
    assert page.inner_text(".facts").startswith("tiny on this-server: ")
    assert [card.inner_text() for card in page.query_selector_all(".result-card h2")] == [
        "ngram", "suffix",
    ]  # fmt: skip
    assert "has not drafted, its α is a guess" in page.inner_text("#calculator-form")
    assert "weights are read at" in page.inner_text("#calculator-form")
    changed(page, lambda: page.select_option("#calculator-model", "Qwen3-8B"))
    assert page.inner_text(".facts").startswith("Qwen3-8B on this-server: ")


def test_a_server_without_a_preset_of_its_own_has_the_calculator(
    served: str, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(engine: Any) -> Any:
        raise ApiError(404, "no scenario: none today")

    monkeypatch.setattr(this_server, "fit_server", refuse)
    monkeypatch.setattr(this_server, "FRESH", -1.0)
    open_page.expect("404")  # type: ignore[attr-defined]
    page = opened(open_page, served)
    assert page.input_value("#calculator-model") == FIRST["model"]
    said = "There is no preset of this server: no scenario: none today"
    assert page.inner_text(".presets .hint") == said
