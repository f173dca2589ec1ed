"""The playground as a person uses it, at a real server of a tiny random model."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.server.conftest import eventually, listening
from tests.server.fake import FakeAsyncEngine

from .serving import LOOP, Open, answers, choose, ready, say
from .serving import served as served

ROUND = {
    "position": 0,
    "proposed": 0,
    "verified": 0,
    "accepted": 0,
    "forced": 0,
    "beside": 0,
    "cut_by": "prompt",
    "part": None,
    "drafter": None,
    "time": 1.0,
    "draft_ms": 0,
    "step_ms": 1,
    "drafted_tokens": [],
    "hidden_tokens": 0,
    "verified_tokens": [],
    "forced_places": [],
    "committed_tokens": [{"id": 5, "text": "so far", "kind": "bonus"}],
}


def test_a_server_opens_on_the_playground_and_a_link_on_its_tab(
    served: str, open_page: Open
) -> None:
    page = open_page(served + "/")
    page.wait_for_selector("#panel-playground .ask")
    assert "tiny" in page.inner_text(".start") and page.title() == "Playground · Paceline"
    page.goto(f"{served}/#calculator")
    page.wait_for_selector("#calculator-form")
    assert not page.is_visible("#panel-playground")


def said(answer: Any) -> str:
    """The answer's text without what was drafted in vain."""
    return str(
        answer.evaluate(
            "(e) => [...e.querySelectorAll('.tokens > span')].map((s) => s.textContent).join('')"
        )
    )


def at_the_first_token(page: Any, action: str) -> None:
    """Runs JavaScript in the page as soon as there is a token: a tiny model is soon done."""
    page.wait_for_function(
        f"() => document.querySelector('.tokens .token') !== null && ({action}, true)"
    )


STOP = "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Stop').click()"


def number(answer: Any, name: str) -> str:
    pairs = answer.eval_on_selector_all(
        ".numbers > div", "(all) => all.map((d) => [...d.children].map((c) => c.textContent))"
    )
    return str(dict(pairs)[name])


def test_off_beside_on_says_the_same_and_shows_how(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    posted: list[dict[str, Any]] = []
    page.on("request", lambda r: posted.append(r.post_data_json) if r.method == "POST" else None)
    choose(page, "both", temperature="1", max_completion_tokens="60", seed="7")
    page.select_option('[data-field="speculative.policy"] select', "fixed")
    say(page, LOOP)
    off, on = answers(page, "done", 2)
    verdict = page.wait_for_selector(".verdict:visible").inner_text()
    count = number(off, "tokens")
    assert f"Identical, {count} tokens." in verdict
    assert number(on, "tokens") == count and said(off) == said(on)
    assert [body["speculative"] for body in posted] == [
        "off",
        {"drafter": "ngram", "policy": "fixed"},
    ]
    assert posted[0]["seed"] == posted[1]["seed"] == 7
    assert posted[0]["cache_salt"] != posted[1]["cache_salt"]
    assert not off.query_selector_all(".token.rejected, .token.accepted")
    assert on.query_selector_all(".token.bonus") and on.query_selector_all(".token.rejected")


def test_two_answers_are_replayed_as_a_race_at_their_own_pace(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choose(page, "both", temperature="0", max_completion_tokens="60")
    say(page, LOOP)
    page.wait_for_selector(".turn .race .result:not(:empty)")  # it has played by itself
    assert not page.is_visible(".answer") and page.is_visible(".verdict")
    for answer, pane in zip(
        page.query_selector_all(".answer"), page.query_selector_all(".race .pane"), strict=True
    ):
        tokens = int(number(answer, "tokens"))
        assert pane.get_attribute("data-tokens") == str(tokens)
        assert pane.query_selector(".played").text_content() == said(answer)
        elapsed = float(pane.query_selector("dl > div:nth-child(2) dd").inner_text().split()[0])
        first, step = (milliseconds(number(answer, name)) for name in ("TTFT", "TPOT"))
        assert elapsed == pytest.approx((first + step * (tokens - 1)) / 1e3, abs=0.03)
    page.click('.turn button:text-is("Rounds")')
    assert page.is_visible(".answer .tokens") and not page.is_visible(".race")


def milliseconds(shown: str) -> float:
    value, unit = shown.split()
    return float(value.replace(",", "")) * {"µs": 1e-3, "ms": 1, "s": 1e3}[unit]


def test_answers_show_markdown_and_what_a_model_writes_runs_nowhere(
    served: str, open_page: Open
) -> None:
    page = ready(open_page, served)
    texts = [
        "# He",
        "llo\n<script>window.harm = 1</script>",
        " [x](javascript:harm())\n\n``",
        "`py\na",
    ]
    rounds = [
        {**ROUND, "time": 1 + n, "committed_tokens": [{"id": n, "text": text, "kind": "bonus"}]}
        for n, text in enumerate(texts)
    ]
    choices = [
        {"delta": {"content": text}, "finish_reason": None, "round": one}
        for text, one in zip(texts, rounds, strict=True)
    ]
    choices[0]["delta"]["reasoning_content"] = "I *think*."
    choices[-1] |= {"finish_reason": "length"}
    events = [json.dumps({"choices": [choice]}) for choice in choices] + ["[DONE]"]
    body = "".join(f"data: {event}\n\n" for event in events)
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=body),
    )
    choose(page, "on")
    say(page, "Hi")
    (answer,) = answers(page, "done")
    assert answer.query_selector(".prose h4").inner_text() == "Hello"
    assert not answer.query_selector(".thought em").is_visible(), "folded once the answer is there"
    answer.query_selector(".thought summary").click()
    assert answer.query_selector(".thought em").inner_text() == "think"
    told = answer.query_selector(":scope > .prose p").inner_text()
    assert told == "<script>window.harm = 1</script> [x](javascript:harm())"
    assert answer.query_selector(".prose pre").inner_text() == "a"
    assert "mono" in answer.query_selector(".prose code").evaluate(
        "(e) => getComputedStyle(e).font"
    )
    assert not answer.query_selector_all("script, .prose a") and not page.evaluate("window.harm")
    page.click('.turn button:text-is("Rounds")')
    assert not page.is_visible(".prose") and said(answer) == "".join(texts)


def test_the_numbers_are_those_of_the_server(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choose(page, "on", temperature="0", max_completion_tokens="80")
    page.select_option('[data-field="speculative.policy"] select', "fixed")
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, LOOP)
    (answer,) = answers(page, "done")
    # the same again, whole: look-ups in the text itself draft the same
    body = {**asked.value.post_data_json, "stream": False, "stream_options": None}
    told = httpx.post(f"{served}/v1/chat/completions", json=body, trust_env=False).json()
    counts = told["metrics"]["speculative_decoding"]
    assert number(answer, "tokens") == str(told["usage"]["completion_tokens"])
    assert number(answer, "AL incl. bonus") == f"{counts['mean_acceptance_length']:.2f}"
    accepted = f"{counts['num_accepted_draft_tokens']} of {counts['num_draft_tokens']} "
    assert number(answer, "accepted").startswith(accepted)
    marked = len(answer.query_selector_all(".token.accepted"))
    assert marked == counts["num_accepted_draft_tokens"] > 0


def test_each_kind_has_a_mark_without_colour_and_a_text(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    schema = {"type": "object", "properties": {"answer": {"const": "yes"}}, "required": ["answer"]}
    choose(page, "on", response_format=json.dumps(schema), max_completion_tokens="40")
    say(page, "Well?")
    (answer,) = answers(page, "done")
    assert said(answer).startswith('{"')
    forced = answer.query_selector(".token.forced")
    assert "forced: the only token that the grammar allowed" in forced.get_attribute("title")
    marks = page.eval_on_selector_all(
        "#panel-playground .token-legend .token",
        """(all) => all.map((e) => {
            const s = getComputedStyle(e);
            return [s.textDecorationLine, s.textDecorationStyle, s.backgroundImage].join(" ");
        })""",
    )
    assert len(marks) == 6 and len(set(marks)) == 6
    legend = page.inner_text("#panel-playground .token-legend")
    for word in ("accepted", "bonus", "forced", "rejected", "drafted", "withheld"):
        assert word in legend


def test_stop_stops_and_the_server_lets_go(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choose(page, "both", max_completion_tokens="450", temperature="0")
    say(page, LOOP)
    at_the_first_token(page, STOP)
    (stopped,) = answers(page, "stopped")
    assert "stopped" in stopped.inner_text()
    assert not page.is_visible(".verdict") and not page.is_visible('button:text-is("Stop")')

    def running() -> float:
        return float(httpx.get(f"{served}/ui/live").json()["now"]["running"])

    eventually(lambda: running() == 0)
    assert int(number(stopped, "tokens")) < 450
    choose(page, "on", max_completion_tokens="5")
    say(page, "And now?")
    answers(page, "done")


def test_an_answer_that_ends_does_not_take_the_focus_from_the_settings(
    served: str, open_page: Open
) -> None:
    page = ready(open_page, served)
    choose(page, "on", max_completion_tokens="40", temperature="0")
    say(page, LOOP)
    page.focus('[data-field="system"] textarea')
    answers(page, "done")
    page.wait_for_selector('button:text-is("Send"):enabled')
    held = "document.activeElement.closest('[data-field]').dataset.field"
    assert page.evaluate(held) == "system"


def test_escape_stops(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    choose(page, "off", max_completion_tokens="900", temperature="0")
    say(page, LOOP)
    page.wait_for_selector('button:text-is("Stop"):visible')
    page.keyboard.press("Escape")
    answers(page, "stopped")


def test_a_refusal_stands_at_its_field_and_nothing_is_lost(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    open_page.expect("400 (Bad Request)")
    for field, value, reason in (
        ("max_completion_tokens", "5000", "at most"),
        ("temperature", "101", "100"),
        ("speculative.max_draft_len", "40", "at most"),
        ("response_format", '{"type": "nonsense"}', "nonsense"),
    ):
        choose(page, "on", **{field: value})
        say(page, "Hello?")
        error = page.wait_for_selector(f'[data-field="{field}"] .error:visible')
        assert reason in error.inner_text()
        assert page.input_value('[data-field="messages"] textarea') == "Hello?"
        assert not page.query_selector_all(".answer")
        choose(
            page, "on", **{field: "1" if field in ("max_completion_tokens", "temperature") else ""}
        )


def test_nonsense_is_not_even_sent(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choose(page, "on", temperature="", response_format="")
    say(page, "Hello?")
    assert (
        "a number"
        in page.wait_for_selector('[data-field="temperature"] .error:visible').inner_text()
    )
    choose(page, "on", temperature="0", response_format="{no json")
    say(page, "Hello?")
    page.wait_for_selector('[data-field="response_format"] .error:visible')


def test_an_engine_that_fails_says_so_in_place(open_page: Open) -> None:
    with listening(FakeAsyncEngine(fail=True)) as running:
        page = ready(open_page, running.url)
        choose(page, "on")
        say(page, "Hi")
        notice = page.wait_for_selector(".turn .notice.bad")
        assert "the engine failed" in notice.inner_text()
        assert notice.query_selector("button"), "it can be tried again"


def test_a_server_without_drafters_offers_none(open_page: Open) -> None:
    with listening(FakeAsyncEngine(drafter=False)) as running:
        page = ready(open_page, running.url)
        assert page.is_disabled('input[name="mode"][value="both"]')
        assert "no drafter" in page.inner_text(".settings")


def test_whole_sentences_are_read_out_politely(open_page: Open) -> None:
    with listening(FakeAsyncEngine()) as running:
        page = ready(open_page, running.url)
        choose(page, "on", max_completion_tokens="60")
        say(page, "Hi")
        page.wait_for_selector(".turn")
        live = page.wait_for_selector('[aria-live="polite"] p', state="attached")
        assert re.search(r"Ein Gruß 🚴!$", live.text_content())


def test_it_fits_a_phone(served: str, open_page: Open) -> None:
    page = ready(open_page, served, viewport={"width": 390, "height": 844})
    page.click("summary:has-text('Settings')")
    choose(page, "both", max_completion_tokens="60")
    say(page, "a" * 200)
    answers(page, "done", 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_keys_and_taps_tell_of_a_token(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choose(page, "on", max_completion_tokens="8", temperature="0")
    say(page, "Hi")
    (answer,) = answers(page, "done")
    page.click('.turn button:text-is("Rounds")')
    answer.query_selector(".tokens").focus()
    page.keyboard.press("ArrowRight")
    told = answer.wait_for_selector(".told:visible")
    assert "Round 1:" in told.inner_text()
    page.keyboard.press("ArrowRight")
    assert "Round 2:" in told.inner_text()
    answer.query_selector(".tokens .token:last-child").dispatch_event("click")
    assert told.inner_text() == answer.query_selector(".token.seen").get_attribute("title")


def test_a_connection_that_breaks_is_said_and_the_text_stays(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choice = {"delta": {"content": "so far"}, "finish_reason": None, "round": ROUND}
    event = f"data: {json.dumps({'choices': [choice]})}\n\n"
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=event),
    )
    choose(page, "on")
    say(page, LOOP)
    (failed,) = answers(page, "failed")
    assert "broke off" in failed.inner_text() and said(failed) == "so far"
    assert page.input_value('[data-field="messages"] textarea') == LOOP
