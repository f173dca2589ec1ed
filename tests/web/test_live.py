"""The Live tab: its numbers are the server's, and nobody asks when nobody looks."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.bench.report.rounds import summary
from tests.server.conftest import eventually, listening
from tests.server.fake import FakeAsyncEngine
from tests.server.test_real_engine import PROMPT, TEXT, tiny_engine

from .serving import Open


def asked(base: str, **changes: Any) -> None:
    body = {**TEXT, "prompt": PROMPT, "temperature": 0, **changes}
    answer = httpx.post(base + "/v1/completions", json=body, trust_env=False)
    assert answer.status_code == 200, answer.text


def scraped(base: str) -> dict[str, float]:
    text = httpx.get(base + "/metrics", trust_env=False).text
    return {
        sample.name + sample.labels.get("position", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def tile(page: Any, name: str) -> str:
    return str(page.inner_text(f'.tile:has(h2:text-is("{name}"))'))


def opened(open_page: Open, base: str) -> Any:
    open_page.expect("ERR_CONNECTION_REFUSED")  # type: ignore[attr-defined]  # the server ends first
    page = open_page(f"{base}/#live")
    page.wait_for_selector(".live .tile")
    return page


def test_its_numbers_are_those_of_metrics(open_page: Open) -> None:
    with listening(tiny_engine(), served_model_names=("app-a", "app-b")) as running:
        base = running.url
        page = opened(open_page, base)
        assert "–" in tile(page, "Speedup against AR"), "nothing was measured yet"
        asked(base, model="app-a", speculative={"drafter": "ngram", "policy": "fixed"})
        asked(base, model="app-b", speculative="off")
        page.wait_for_selector('tbody th:text-is("AR")')
        page.wait_for_selector('.tile:has-text("2\u00a0ended")')  # both requests are counted
        seen = scraped(base)
        drafts = seen["vllm:spec_decode_num_drafts_total"]
        drafted = seen["vllm:spec_decode_num_draft_tokens_total"]
        accepted = seen["vllm:spec_decode_num_accepted_tokens_total"]
        told = tile(page, "AL incl. bonus")
        assert f"{1 + accepted / drafts:.2f}" in told
        assert f"{accepted:.0f} of {drafted:.0f} drafted tokens accepted" in told
        speedup = seen["paceline:ar_decode_seconds_total"] / seen["paceline:decode_seconds_total"]
        assert f"{speedup:.2f}×" in tile(page, "Speedup against AR")
        assert "cost table" in tile(page, "Speedup against AR")
        rows = page.eval_on_selector_all(
            ".bars:first-of-type tbody tr",
            "(all) => all.map((r) => [...r.children].map((c) => c.textContent))",
        )
        first = seen["vllm:spec_decode_num_accepted_tokens_per_pos_total0"] / drafts
        assert rows[0] == ["1", "", f"{100 * first:.0f} %", f"{drafts:.0f}"]
        table = page.inner_text('[aria-label="By drafter and cohort"]')
        assert "ngram" in table and "app-a" in table and "app-b" in table
        assert page.locator(".live canvas").count() == 4


def test_a_recent_request_shows_its_rounds(open_page: Open) -> None:
    with listening(tiny_engine()) as running:
        page = opened(open_page, running.url)
        assert "No request with rounds" in page.inner_text(".recent")
        asked(running.url, explain=True, speculative={"drafter": "ngram", "policy": "fixed"})
        page.click(".recent tbody button")
        page.wait_for_selector(".recent .tokens .token.rejected")
        request_id = page.inner_text(".recent tbody button")
        told = httpx.get(f"{running.url}/v1/requests/{request_id}/rounds").json()["choices"][0]
        shown = page.inner_text(".recent .rounds > .hint")
        assert shown.replace(";", "").split()[:4] == summary(told).replace(";", "").split()[:4]
        page.click("text=Round by round")
        assert page.locator(".recent .rounds tbody tr").count() == len(told["rounds"])
        page.click(".recent tbody button")
        assert not page.query_selector(".recent .tokens")


def test_an_idle_server_has_axes_of_usual_numbers(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/#live")
    range_of = """async ([axis, values]) => {
        const { rangeOf } = await import("/web/lib/axes.js");
        return rangeOf(axis, values, 0.08);
    }"""
    for values in ([], [0, 0]):
        low, high = page.evaluate(range_of, [{"min": 0, "atLeast": 10}, values])
        assert low == 0 and 10 <= high < 12
    assert page.evaluate(range_of, [{"min": 0, "atLeast": 10}, [40]])[1] > 40


@pytest.mark.slow
def test_nobody_asks_when_nobody_looks(open_page: Open) -> None:
    with listening(FakeAsyncEngine()) as running:
        page = opened(open_page, running.url)
        asks: list[str] = []
        page.on("request", lambda r: asks.append(r.url) if "/ui/live" in r.url else None)

        def during(seconds: float) -> int:
            before = len(asks)
            page.wait_for_timeout(1000 * seconds)
            return len(asks) - before

        assert 1 <= during(2.1) <= 3
        assert "since=0" not in asks[-1], "only what is new"
        page.click("#tab-playground")
        during(0.3)
        assert during(1.3) == 0
        page.click("#tab-live")
        assert during(1.2) >= 1
        page.evaluate(
            """Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' });
            document.dispatchEvent(new Event('visibilitychange'))"""
        )
        during(0.3)
        assert during(1.3) == 0


def test_a_server_that_is_gone_is_said_and_found_again(open_page: Open) -> None:
    open_page.expect("ERR_CONNECTION_REFUSED")
    with listening(FakeAsyncEngine()) as running:
        page = opened(open_page, running.url)
        assert page.inner_text(".live .state") == "live"
    page.wait_for_selector(".live .state.stale")
    assert "does not answer" in page.inner_text(".live .notice.bad")


def test_the_window_is_kept_in_the_address(open_page: Open) -> None:
    with listening(FakeAsyncEngine()) as running:
        page = opened(open_page, running.url)
        page.select_option("#live-window", "300")
        assert page.evaluate("location.hash") == "#live?window=300"
        page.reload()
        page.wait_for_selector(".live .tile")
        assert page.input_value("#live-window") == "300"


def test_it_fits_a_phone(open_page: Open) -> None:
    with listening(tiny_engine()) as running:
        asked(running.url)
        page = open_page(f"{running.url}/#live", viewport={"width": 390, "height": 844})
        page.wait_for_selector(".live .tile")
        eventually(lambda: time.sleep(0.1) or page.query_selector("tbody th.name"))
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_with_a_key_the_numbers_come(open_page: Open) -> None:
    open_page.expect("401 (Unauthorized)")
    open_page.expect("a valid API key is needed")
    with listening(FakeAsyncEngine(), api_keys=("secret",)) as running:
        page = open_page(f"{running.url}/#live")
        page.fill("#key-field:visible", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector(".live .tile")
