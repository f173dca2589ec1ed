"""The Autospec tab, at a real server with a store and traces made by code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from paceline.autospec.api import autospec_extension
from paceline.autospec.loop import LoopAction, LoopDecision
from paceline.autospec.store import DrafterStore, StoreLease, VersionState
from paceline.core.cohorts import Cohort
from tests.autospec.loop.worlds import CHAT, ME, SHOP, World
from tests.server.conftest import listening
from tests.server.fake import FakeAsyncEngine

from .serving import Open

KEY = "admin-key"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def serving(folder: Path, *, traces: bool = True, **settings: Any) -> AbstractContextManager[Any]:
    where = folder / "traces" if traces else None
    extension = autospec_extension(folder / "store", where)
    return listening(FakeAsyncEngine(), extension, **{"admin_key": KEY, **settings})


def opened(open_page: Open, url: str, **options: Any) -> Any:
    open_page.expect("ERR_CONNECTION_REFUSED")  # type: ignore[attr-defined]  # the server ends first
    page = open_page(f"{url}/#autospec", **options)
    page.wait_for_selector(".autospec .body:not([hidden])")
    return page


def section(page: Any, title: str) -> Any:
    return page.locator(f'section:has(> h2:text-is("{title}"))')


def test_an_empty_store_tells_the_next_commands(tmp_path: Path, open_page: Open) -> None:
    DrafterStore(tmp_path / "store", create=True).close()
    with serving(tmp_path, traces=False) as running:
        page = opened(open_page, running.url)
        text = page.inner_text(".autospec")
        for command in (
            "drafters add",
            "--to live",
            "--traces FOLDER",
            "autospec run",
            "--to canary",
        ):
            assert command in text, command
        assert "no loop runs" in text
        assert page.is_disabled('button:text-is("Promote")')
        assert page.is_disabled('button:text-is("Roll back")')


def test_cohorts_have_curves_with_season_and_marks(world: World, open_page: Open) -> None:
    world.live("base")
    world.history(days=30, shop=0.2)
    world.live("shop-2", SHOP, since_days=2)
    with serving(world.folder) as running:
        page = opened(open_page, running.url)
        page.wait_for_selector(".cohort canvas")
        cards = page.locator(".cohort")
        names = [cards.nth(n).get_attribute("data-cohort") for n in range(cards.count())]
        assert names[0] == "" and {*names} == {"", SHOP, CHAT}
        chat = page.locator(f'[data-cohort="{CHAT}"]')
        assert "usual" in chat.inner_text() and "base drafts for it" in chat.inner_text()
        shop = page.locator(f'[data-cohort="{SHOP}"]')
        assert "shop-2 live, 2 days ago" in shop.inner_text()
        chat.locator("summary").click()
        chat.locator("table th").first.wait_for()
        heads = chat.locator("table th").all_inner_texts()
        assert heads == ["days ago", "AL incl. bonus", "usual"]
        assert chat.locator("table tr").count() > 150
        page.click('button:text-is("60 days, by day")')
        page.wait_for_function(
            """(cohort) => document.querySelectorAll(
                `[data-cohort="${cohort}"] table tr`).length < 40""",
            arg=CHAT,
        )
        assert page.evaluate("location.hash") == "#autospec?by=day"
        page.click('button:text-is("3 hours, by minute")')
        chat.locator('th:text-is("minutes ago")').wait_for()


def test_the_matrix_says_in_words_what_it_colours(world: World, open_page: Open) -> None:
    world.live("base")
    for name, al in (("better", 3.5), ("worse", 2.0)):
        world.store.register(name, ME, spec="suffix")
        world.store.add_score(name, SHOP, al, al - 0.1, al + 0.1, 500, "held out")
    took = {"seconds": 1.0, "ar_seconds": 2.5}
    world.write([world.request(SHOP, world.now - 60, 3.0, "base", **took) for _ in range(9)])
    with serving(world.folder) as running:
        page = opened(open_page, running.url, color_scheme="light")
        page.wait_for_selector(".matrix td:has-text('2.50×')")
        row = page.locator(f".matrix tbody tr:has(th:text-is('{'tiny · shop · de · eu'}'))")
        head = page.locator(".matrix thead th").all_inner_texts()
        cells = dict(zip([text.split("\n")[0] for text in head[1:]],
                         row.locator("td").all_inner_texts(), strict=True))  # fmt: skip
        assert "3.50" in cells["better"] and "scored 3.50 (3.40 to 3.60)" in cells["better"]
        assert "best score of this cohort" in cells["better"] and "★" not in cells["worse"]
        assert "9 requests" in cells["base"]

        def colours() -> list[str]:
            return row.locator("td").evaluate_all(
                "(all) => all.map((td) => getComputedStyle(td).backgroundColor)"
            )

        light = colours()
        assert len(set(light)) == 3
        page.emulate_media(color_scheme="dark")
        assert not set(colours()) & set(light)


def test_a_canary_shows_its_share_and_decisions_their_reasons(
    world: World, open_page: Open
) -> None:
    world.live("base")
    world.push("pushed")
    world.turn()
    world.turn()
    decision = LoopDecision(
        "mix", LoopAction.PROPOSE_ROUTES, (CHAT,), world.now, 12.5, 1.5,
        ("The total AL went down.",), ("No retrain: within cohorts AL is flat.",),
    )  # fmt: skip
    world.loop.journal.note([decision], world.now)
    (active,) = world.loop.journal.active()
    world.loop.journal.update(active, world.now, active.stage, hold=["It is too early."])
    with StoreLease(world.store, "paceline autospec run"), serving(world.folder) as running:
        page = opened(open_page, running.url)
        changes = section(page, "Changes under way")
        text = changes.inner_text()
        assert "pushed in place of base, for all requests" in text
        assert "canary: 20 % of the requests" in text and "tokens per round" in text
        assert changes.locator("[role=meter]").get_attribute("aria-valuenow") == "20"
        assert changes.locator("[aria-current=step]").inner_text() == "canary"
        assert "It waits: It is too early." in text
        said = section(page, "Decisions").inner_text()
        assert "mix: propose routes" in said and "would save 12.5 and would cost 1.5" in said
        assert "No retrain: within cohorts AL is flat." in said
        assert "paceline autospec run decides" in page.inner_text(".autospec .state")


def test_a_version_is_promoted_and_rolled_back_with_the_key(world: World, open_page: Open) -> None:
    open_page.expect("401 (Unauthorized)")  # type: ignore[attr-defined]
    open_page.expect("400 (Bad Request)")  # type: ignore[attr-defined]
    world.live("base")
    world.store.register("next", ME, spec="suffix")
    with serving(world.folder) as running:
        page = opened(open_page, running.url)
        page.select_option("#autospec-name", "next")
        assert page.input_value("#autospec-goal") == "canary"
        assert not page.is_visible("#autospec-cohort")
        page.select_option("#autospec-goal", "live")
        assert page.is_visible("#autospec-cohort")
        assert "in place of base" in page.inner_text("form:has(#autospec-goal)")
        page.fill("#autospec-reason", "it is better")
        page.click('button:text-is("Promote")')
        page.wait_for_selector("#admin-key-error:visible")
        assert "the admin key is needed" in page.inner_text("#admin-key-error")
        assert not page.is_visible("#key-dialog"), "no API key is asked for"
        page.fill("#admin-key", KEY)
        page.click('button:text-is("Promote")')
        page.wait_for_selector(".done")
        done = page.inner_text(".done")
        assert "next is live for all requests; base is retired." in done and "No loop runs" in done
        assert not page.is_visible("#admin-key-error")
        page.wait_for_selector(".versions tr:has(th:text-is('next')):has-text('all requests')")
        page.wait_for_selector("text=base drafts for all requests again, in place of next.")
        page.click('button:text-is("Roll back")')
        page.wait_for_selector('.done:has-text("base is live for all requests; next is retired.")')
        assert world.store.live() == {"": "base"}
        assert world.store.history("next")[-1].reason == "it is better"
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert KEY not in kept
        page.reload()
        page.wait_for_selector(".autospec .body:not([hidden])")
        assert page.input_value("#admin-key") == ""


def test_a_live_version_that_the_server_lacks_is_marked(world: World, open_page: Open) -> None:
    world.live("ngram")  # as the server's drafter is called
    world.live("shop-1", SHOP)
    world.store.register("next", ME, spec="suffix")
    with serving(world.folder) as running:
        page = opened(open_page, running.url)
        marked = page.locator(".versions tr:has(.missing) th").all_inner_texts()
        assert marked == ["shop-1"]


def test_a_refusal_stands_at_its_field(world: World, open_page: Open) -> None:
    open_page.expect("400 (Bad Request)")  # type: ignore[attr-defined]
    world.live("base")
    world.store.register("next", ME, spec="suffix")
    with serving(world.folder) as running:
        page = opened(open_page, running.url)
        page.fill("#admin-key", KEY)
        page.select_option("#autospec-name", "next")
        page.select_option("#autospec-goal", "scored")
        page.click('button:text-is("Promote")')
        page.wait_for_selector("#autospec-goal-error:visible")
        assert "next has none" in page.inner_text("#autospec-goal-error")


def test_a_reader_s_choices_outlive_an_update(world: World, open_page: Open) -> None:
    world.live("base")
    for name in ("one", "two"):
        world.store.register(name, ME, spec="suffix")
    with serving(world.folder) as running:
        page = opened(open_page, running.url)
        page.select_option("#autospec-name", "one")
        page.select_option("#autospec-goal", "shadow")
        world.store.promote("two", ME, VersionState.SHADOW)
        page.click("#tab-live")
        page.wait_for_timeout(2100)  # longer than an answer is kept
        page.click("#tab-autospec")
        page.wait_for_selector("#autospec-name option:text-is('two (shadow)')", state="attached")
        assert page.input_value("#autospec-name") == "one"
        assert page.input_value("#autospec-goal") == "shadow"


def test_a_store_that_is_gone_is_said(tmp_path: Path, open_page: Open) -> None:
    open_page.expect("503 (Service Unavailable)")  # type: ignore[attr-defined]
    open_page.expect("ERR_CONNECTION_REFUSED")  # type: ignore[attr-defined]
    with serving(tmp_path) as running:
        page = open_page(f"{running.url}/#autospec")
        page.wait_for_selector(".autospec .notice.bad")
        assert "paceline drafters add" in page.inner_text(".autospec .notice.bad")


def test_many_cohorts_are_cut_and_it_fits_a_phone(world: World, open_page: Open) -> None:
    world.live("base")
    many = [Cohort("a-model-with-a-long-name", f"application-{n}").label for n in range(25)]
    world.write([world.request(cohort, world.now - 60, 3.0, "base") for cohort in many])
    with serving(world.folder) as running:
        page = opened(open_page, running.url, viewport={"width": 390, "height": 844})
        page.wait_for_selector(".cohort canvas")
        assert page.locator(".cohort").count() == 21
        assert "5 more cohorts" in page.inner_text(".left-out")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_with_a_key_the_tab_comes(world: World, open_page: Open) -> None:
    open_page.expect("401 (Unauthorized)")  # type: ignore[attr-defined]
    open_page.expect("a valid API key is needed")  # type: ignore[attr-defined]
    world.live("base")
    with serving(world.folder, api_keys=("secret",)) as running:
        page = open_page(f"{running.url}/#autospec")
        page.fill("#key-field:visible", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector(".autospec .body:not([hidden])")
        open_page.expect("ERR_CONNECTION_REFUSED")  # type: ignore[attr-defined]
