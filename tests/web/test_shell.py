"""The frame of the page, as somebody with a keyboard and no patience uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from .conftest import ui_server

Open = Callable[..., Any]


def selected(page: Any) -> str:
    page.wait_for_selector('[role="tab"][aria-selected="true"]')
    return page.text_content('[role="tab"][aria-selected="true"]')


def test_arrow_keys_walk_through_the_tabs(url: str, open_page: Open) -> None:
    page = open_page(url + "/")
    assert selected(page) == "Calculator"
    page.focus('[role="tab"][aria-selected="true"]')
    walked = []
    for key in (*["ArrowRight"] * 6, "End", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        page.wait_for_selector('[role="tab"]:focus[aria-selected="true"]')
        walked.append(selected(page))
    assert walked == [
        "Timing", "Playground", "Live", "Autospec", "Training", "Calculator", "Training",
        "Autospec", "Calculator",
    ]  # fmt: skip
    assert page.evaluate("location.hash").startswith("#calculator")
    assert page.title() == "Calculator · Paceline"


def test_what_a_tab_remembers_while_it_is_left_does_not_bring_it_back(
    url: str, open_page: Open
) -> None:
    page = open_page(url + "/#timing")
    page.wait_for_selector("#timing-play:enabled")
    page.evaluate("""() => {
      location.hash = "playground"; // the page learns of it a moment later
      const tokens = document.getElementById("timing-n");
      tokens.value = "77";
      tokens.dispatchEvent(new Event("input", { bubbles: true }));
    }""")
    page.wait_for_selector("#panel-playground:visible")
    assert selected(page) == "Playground"
    page.click("#tab-timing")
    page.wait_for_selector("#panel-timing:visible")
    assert page.input_value("#timing-n") == "77" and "n=77" in page.evaluate("location.hash")


def test_without_a_model_playground_and_live_say_how_to_start_one(
    url: str, open_page: Open
) -> None:
    page = open_page(url + "/#live")
    assert "paceline serve" in page.inner_text("#panel-live")
    page.click("#tab-playground")
    page.wait_for_selector("#panel-playground:visible")
    assert "paceline serve" in page.inner_text("#panel-playground")
    assert not page.is_visible("#panel-live")
    page.click("#tab-autospec")
    page.wait_for_selector("#panel-autospec:visible")
    assert "--autospec STORE" in page.inner_text("#panel-autospec")


def test_the_switch_changes_the_colours_and_is_remembered(url: str, open_page: Open) -> None:
    page = open_page(url + "/", color_scheme="light")

    def paper() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper()
    page.click("#theme")
    assert paper() == light and "Light" in page.inner_text("#theme")
    page.click("#theme")
    dark = paper()
    assert dark != light and "Dark" in page.inner_text("#theme")
    page.reload()
    assert paper() == dark
    page.click("#theme")
    assert paper() == light  # the system's again


def test_on_a_phone_nothing_is_wider_than_the_screen(url: str, open_page: Open) -> None:
    for tab in ("calculator", "timing", "playground", "live", "autospec"):
        page = open_page(f"{url}/#{tab}", viewport={"width": 390, "height": 844})
        page.wait_for_selector(f"#panel-{tab}:visible")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab


def test_a_key_is_asked_for_once_and_sent_with_data_only(open_page: Open) -> None:
    with ui_server(api_keys=("secret",)) as address:
        assert httpx.get(address + "/").status_code == 200
        refused = httpx.get(address + "/ui/models")
        assert refused.status_code == 401
        assert json.loads(refused.text)["error"]["code"] == "invalid_api_key"
        open_page.expect("401")  # the browser's own line in the console
        page = open_page(address + "/")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key-field", "wrong")
        page.press("#key-field", "Enter")
        page.wait_for_selector("#key-error:visible")
        assert "a valid API key is needed" in page.inner_text("#key-error")
        page.fill("#key-field", "secret")
        page.press("#key-field", "Enter")
        page.wait_for_selector("#calculator-form")
        page.wait_for_timeout(100)
        assert not page.is_visible("#key-dialog")


def test_a_tab_that_could_not_open_leaves_no_trace_in_another(open_page: Open) -> None:
    with ui_server(api_keys=("secret",)) as address:
        open_page.expect("401")
        page = open_page(address + "/#calculator")
        page.wait_for_selector("#key-dialog[open]")
        page.click("#key-cancel")
        page.wait_for_selector("#panel-calculator .notice.bad")
        page.click("#tab-playground")
        page.wait_for_selector("#panel-playground:visible")
        assert not page.is_visible("#panel-calculator")
        page.click("#tab-calculator")  # tries again
        page.wait_for_selector("#key-dialog[open]")
        assert page.locator("#panel-calculator").count() == 1


def test_nothing_of_a_tab_is_built_before_its_style_applies(url: str, open_page: Open) -> None:
    page = open_page(f"{url}/#playground")
    page.wait_for_selector("#panel-playground .notice")
    held: list[Any] = []
    page.route("**/web/tabs/timing.css", lambda route: held.append(route))
    with page.expect_request("**/web/tabs/timing.js"):
        page.click("#tab-timing")
    page.wait_for_timeout(400)
    assert held, "asked for beside the module"
    assert page.inner_html("#panel-timing") == ""
    held[0].continue_()
    page.wait_for_selector("#timing-play:enabled")
    assert page.evaluate("getComputedStyle(document.querySelector('.speeds')).display") == "grid"


def test_files_are_typed_revalidated_and_nothing_else_is_served(url: str) -> None:
    page = httpx.get(url + "/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    script = httpx.get(url + "/web/shell.js", headers={"Accept-Encoding": "identity"})
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    packed = httpx.get(url + "/web/shell.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and packed.text == script.text
    again = httpx.get(url + "/web/shell.js", headers={"If-None-Match": script.headers["etag"]})
    assert again.status_code == 304 and not again.content
    for path in ("/web/../server/gate.py", "/web/%2e%2e/server/gate.py", "/web/nothing.js"):
        assert httpx.get(url + path).status_code == 404


def test_a_body_past_the_bound_is_refused(url: str) -> None:
    with ui_server(max_body_bytes=100) as address:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(address + "/ui/predict", content=b"x" * 101, headers=headers)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
