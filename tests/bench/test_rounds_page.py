"""The timeline of a request: one page that loads nothing and escapes what a model wrote."""

from __future__ import annotations

from typing import Any

from paceline.bench.report.rounds import page, rejected, summary, table


def token(number: int, text: str, kind: str | None = None) -> dict[str, Any]:
    return {"id": number, "text": text} | ({} if kind is None else {"kind": kind})


def shown(**changes: Any) -> dict[str, Any]:
    """A round that drafted three tokens: one stands, one is rejected, one was cut."""
    return {
        "position": 4, "proposed": 3, "verified": 2, "accepted": 1, "forced": 0, "cut_by": "cost",
        "drafter": "auto", "part": "suffix", "draft_ms": 1.0, "step_ms": 3.0, "step_requests": 2,
        "step_rows": 5, "hidden_tokens": 0, "forced_places": [],
        "drafted_tokens": [token(1, "<b>"), token(2, "wrong"), token(3, "late")],
        "verified_tokens": [token(1, "<b>"), token(2, "wrong")],
        "committed_tokens": [token(1, "<b>", "accepted"), token(9, "\n", "bonus")],
    } | changes  # fmt: skip


def plain() -> dict[str, Any]:
    return shown(
        proposed=0, verified=0, accepted=0, cut_by=None, part=None, draft_ms=0.0, step_ms=1.0,
        drafted_tokens=[], verified_tokens=[], committed_tokens=[token(5, "x", "bonus")],
    )  # fmt: skip


def told(*rounds: dict[str, Any], left_out: int = 0) -> dict[str, Any]:
    choice = {"index": 0, "rounds": list(rounds), "rounds_left_out": left_out}
    return {"id": "c-<1>", "model": "m", "choices": [choice]}


def test_a_page_loads_nothing_and_escapes_text() -> None:
    text = page(told(shown()))
    assert "<b>" not in text and "&lt;b&gt;" in text and "c-&lt;1&gt;" in text
    assert "<script" not in text and "src=" not in text and "href=" not in text


def test_every_token_has_the_style_of_what_became_of_it() -> None:
    text = page(told(shown()))
    for style, piece in (
        ("accepted", "&lt;b&gt;"),
        ("bonus", "⏎"),
        ("rejected", "wrong"),
        ("cut", "late"),
    ):
        assert f'<span class="{style}">{piece}</span>' in text
    assert (
        "drafted 3 by suffix, verified 2, accepted 1, forced 0; no longer because of: cost" in text
    )


def test_bars_are_as_long_as_rounds_took() -> None:
    text = page(told(shown(), plain()))
    assert 'style="width:100.0%"' in text and 'style="width:25.0%"' in text


def test_hidden_tokens_are_counted_and_not_shown() -> None:
    text = page(told(shown(hidden_tokens=3)))
    assert '<span class="hidden">[3 hidden]</span>' in text


def test_the_summary_counts_drafted_rounds_only_in_its_acceptance_length() -> None:
    line = summary(told(shown(), plain(), left_out=7)["choices"][0])
    assert line.startswith("3 tokens in 2 rounds, 1 of them drafted (by suffix 1×); AL 2.00")
    assert "drafts kept short by: cost 1×; 7 later rounds were not kept" in line
    assert "AL 1.00" in summary(told(plain())["choices"][0])


def test_tokens_forced_within_a_draft_are_no_draft() -> None:
    forced = shown(verified=1, forced_places=[0], accepted=0)
    assert "0 of them drafted" in summary(told(forced)["choices"][0])


def test_rejected_tokens_begin_with_the_first_difference() -> None:
    assert [each["text"] for each in rejected(shown())] == ["wrong"]
    assert rejected(plain()) == []


def test_the_table_has_a_line_for_each_round() -> None:
    assert table(told(shown(), plain())["choices"][0]).row_count == 2
