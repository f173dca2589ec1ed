"""The playground's conversations: kept in the browser, continued, answered anew, deleted."""

from __future__ import annotations

import json
from typing import Any

from .serving import LOOP, Open, answers, choose, ready, say
from .serving import served as served


def test_a_conversation_is_kept_continued_saved_answered_anew_and_deleted(
    served: str, open_page: Open
) -> None:
    page = ready(open_page, served)
    settings = {"max_completion_tokens": "12", "temperature": "0"}
    choose(page, "on", system="Be brief.", **settings)
    say(page, "First")
    answers(page, "done")
    page.reload()
    page.click(".history summary")
    page.click('.kept button:text-is("First")')
    assert page.inner_text(".said") == "First" and page.query_selector('[data-state="kept"] .prose')
    choose(page, "on", **settings)
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "Second")
    sent = asked.value.post_data_json["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "user"]
    answers(page, "done")
    page.wait_for_selector('button:text-is("↻ Regenerate"):enabled')
    with page.expect_request("**/v1/chat/completions") as again:
        page.click('button:text-is("↻ Regenerate")')
    assert again.value.post_data_json["messages"] == sent
    page.wait_for_selector('button:text-is("Send"):enabled')
    assert page.locator(".turn:visible").count() == 2
    for kind, name in (("JSON", ".json"), ("Markdown", ".md")):
        with page.expect_download() as file:
            page.click(f'.history .save button:text-is("{kind}")')
        assert file.value.suggested_filename.endswith(name)
        text = file.value.path().read_text("utf-8")
        assert "First" in text and "Second" in text and "Be brief." in text
    page.click('[aria-label="Delete “First”"]')
    page.wait_for_selector(".log .start")
    assert page.evaluate("Object.keys(localStorage).length") == 0


def test_old_conversations_make_room_and_a_browser_without_storage_says_so(
    served: str, open_page: Open
) -> None:
    page = ready(open_page, served)
    kept = """async ([count, size]) => {
        const { keepConversation, keptConversations, FORMAT } =
            await import("/web/lib/conversations.js");
        const answers = [{ title: "on", model: "m", text: "x".repeat(size), reasoning: "",
            tokens: 1, acceptance_length: null, tpot: null, ttft: null, seed: null }];
        for (let n = 0; n < count; n += 1) {
            keepConversation({ format: FORMAT, id: `${n}`, system: "",
                updated: new Date(1e12 + 1e6 * n).toISOString(),
                turns: [{ said: "?", answers, verdict: "" }] });
        }
        localStorage.setItem("paceline-conversation:damaged", "{");
        return keptConversations().map(({ id }) => Number(id));
    }"""
    assert page.evaluate(kept, [60, 10]) == list(range(59, 9, -1))
    assert page.evaluate(kept, [60, 300_000]) == list(range(59, 53, -1))
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full'); }; }")
    choose(page, "on", max_completion_tokens="5")
    say(page, "Hi")
    answers(page, "done")
    page.click(".history summary")
    assert "cannot keep" in page.wait_for_selector(".history .error:visible").inner_text()


ANSWERED = {
    "title": "Speculation off", "model": "the-old-one", "text": "Forty-two.", "reasoning": "",
    "tokens": 5, "acceptance_length": None, "tpot": 0.01, "ttft": 0.1, "seed": 7,
}  # fmt: skip


def keep(page: Any, name: str, **changes: Any) -> None:
    """Stores a conversation as an earlier visit left it, and opens the page anew."""
    turn = {"said": "What is it?", "answers": [{**ANSWERED, **changes}], "verdict": ""}
    stored = {"format": "paceline-conversation/1", "id": name, "system": "",
              "updated": "2026-01-01T00:00:00Z", "turns": [turn]}  # fmt: skip
    page.evaluate(
        "([name, text]) => localStorage.setItem(`paceline-conversation:${name}`, text)",
        [name, json.dumps(stored)],
    )
    page.reload()
    page.click(".history summary")


def test_a_stopped_second_answer_leaves_the_first_and_each_names_its_model(
    served: str, open_page: Open
) -> None:
    page = ready(open_page, served)
    keep(page, "kept")
    page.click('.kept button:text-is("What is it?")')
    page.route("**/v1/chat/completions", lambda route: None)  # never answered
    page.click('button:text-is("↻ Regenerate")')
    page.wait_for_selector('button:text-is("Stop"):visible')
    page.keyboard.press("Escape")
    page.wait_for_selector('button:text-is("Send"):enabled')
    assert page.locator(".turn").count() == 1
    assert "Forty-two." in page.inner_text(".turn") and "the-old-one" in page.inner_text(".turn")
    page.unroute("**/v1/chat/completions")
    choose(page, "on", max_completion_tokens="5", temperature="0")
    say(page, "And now?")
    answers(page, "done")
    page.wait_for_selector('button:text-is("Send"):enabled')
    with page.expect_download() as file:
        page.click('.history .save button:text-is("Markdown")')
    text = file.value.path().read_text("utf-8")
    assert "## the-old-one (Speculation off)\n\nForty-two." in text
    assert "## tiny (Speculation on: ngram)" in text


def test_a_damaged_conversation_is_not_listed_and_can_be_deleted(
    served: str, open_page: Open
) -> None:
    page = ready(open_page, served)
    for name, changes in (
        ("kept", {}), ("number", {"tokens": "5"}), ("time", {"tpot": {}}), ("text", {"text": None}),
    ):  # fmt: skip
        keep(page, name, **changes)
    told = page.wait_for_selector(".history .unreadable:visible")
    assert told.inner_text().startswith("Cannot be read: 3 of the conversations")
    assert page.locator(".kept li").count() == 1
    page.click('.history .unreadable button:text-is("Delete")')
    assert not page.is_visible(".history .unreadable")
    assert page.evaluate("Object.keys(localStorage)") == ["paceline-conversation:kept"]


def test_the_conversation_goes_on(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choose(page, "on", system="Be brief.", max_completion_tokens="12", temperature="0")
    say(page, "First")
    answers(page, "done")
    with page.expect_request("**/v1/chat/completions") as second:
        say(page, "Second")
    sent = second.value.post_data_json["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert sent[0]["content"] == "Be brief." and sent[2]["content"]
    answers(page, "done", 2)
    page.click('button:text-is("New conversation")')
    assert not page.query_selector_all(".answer")


def test_a_system_prompt_changed_on_the_way_begins_anew(served: str, open_page: Open) -> None:
    page = ready(open_page, served)
    choose(page, "on", max_completion_tokens="900", temperature="0")
    say(page, LOOP)
    page.wait_for_selector(".tokens .token", state="attached")
    page.fill('[data-field="system"] textarea', "Be brief.")
    page.press('[data-field="system"] textarea', "Tab")  # leaving the field is what changes it
    page.wait_for_selector(".log .start")
    page.wait_for_selector('button:text-is("Send"):enabled')
    choose(page, "on", max_completion_tokens="5")
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "And now?")
    assert [m["content"] for m in asked.value.post_data_json["messages"]] == [
        "Be brief.", "And now?"
    ]  # fmt: skip
    answers(page, "done")
