"""Rounds for people: a table in the terminal, and a timeline as one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from paceline.core import TokenKind

STYLES = {
    TokenKind.ACCEPTED: "green",
    TokenKind.FORCED: "cyan",
    TokenKind.BONUS: "bold",
}
REJECTED = "red strike"
HIDDEN = "dim"
Round = Mapping[str, Any]


def table(choice: Mapping[str, Any]) -> Table:
    """One row per round: where it stood, how the draft shrank and why, what was committed."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("at", "drafted\nverified\naccepted", "forced", "ms"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("by", max_width=8, overflow="fold")
    made.add_column("no longer\nbecause of", max_width=10)
    made.add_column("tokens", overflow="fold", min_width=30)
    for one in choice["rounds"]:
        made.add_row(
            str(one["position"]),
            f"{one['proposed']} {one['verified']} {one['accepted']}" if one["proposed"] else "",
            str(one["forced"] or ""),
            f"{one['step_ms'] + one['draft_ms']:.1f}",
            (one["part"] or one["drafter"]) if one["proposed"] else "",
            one["cut_by"] or "",
            _tokens(one),
        )
    return made


def _tokens(one: Round) -> Text:
    text = Text()
    for token in one["committed_tokens"]:
        text.append(_visible(token["text"]), STYLES[TokenKind(token["kind"])])
    for token in rejected(one):
        text.append(_visible(token["text"]), REJECTED)
    if one["hidden_tokens"]:
        text.append(_hidden(one), HIDDEN)
    return text


def _hidden(one: Round) -> str:
    return f"[{one['hidden_tokens']} hidden]"


def rejected(one: Round) -> list[Mapping[str, Any]]:
    """The verified tokens that do not stand."""
    stand = 0
    pairs = zip(one["verified_tokens"], one["committed_tokens"], strict=False)
    for verified, committed in pairs:
        if verified["id"] != committed["id"]:
            break
        stand += 1
    return list(one["verified_tokens"][stand:])


def summary(choice: Mapping[str, Any]) -> str:
    rounds: Sequence[Round] = choice["rounds"]
    drafted = [one for one in rounds if one["verified"] - len(one["forced_places"]) > 0]
    accepted = sum(one["accepted"] for one in drafted)
    tokens = sum(len(one["committed_tokens"]) for one in rounds)
    length = 1 + accepted / len(drafted) if drafted else 1.0
    left_out = choice["rounds_left_out"]
    why = _counted(one["cut_by"] for one in rounds)
    who = _counted(one["part"] for one in drafted)
    return (
        f"{tokens} tokens in {len(rounds)} rounds, {len(drafted)} of them drafted"
        f"{f' (by {who})' if who else ''}; "
        f"AL {length:.2f} incl. bonus; forced {sum(one['forced'] for one in rounds)}; "
        f"drafts kept short by: {why or 'nothing'}"
        f"{f'; {left_out} later rounds were not kept' if left_out else ''}"
    )


def _counted(names: Iterable[str | None]) -> str:
    """`cost 3×, rest 12×`"""
    counts = Counter(name for name in names if name)
    return ", ".join(f"{name} {count}×" for name, count in sorted(counts.items()))


def legend() -> Text:
    return Text.assemble(
        "tokens: ",
        ("accepted from the draft", STYLES[TokenKind.ACCEPTED]),
        " · ",
        ("forced by the grammar", STYLES[TokenKind.FORCED]),
        " · ",
        ("the model's own", STYLES[TokenKind.BONUS]),
        " · ",
        ("drafted and rejected", REJECTED),
        " · ",
        ("[hidden]", HIDDEN),
        " drafted from another request's text and not in this answer",
    )


def _visible(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥")


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; }}
body {{ padding: 0 1rem; }}
ol {{ list-style: none; padding: 0; }}
li {{ border-left: 3px solid #8884; padding: .25rem .75rem; margin: .25rem 0; }}
.bar {{ height: 4px; background: #4a7fd6; border-radius: 2px; min-width: 2px; }}
.meta {{ opacity: .75; font-size: 12px; }}
code {{ white-space: pre-wrap; }}
.accepted {{ color: #1a8f3c; }} .forced {{ color: #0a8ea0; }} .bonus {{ font-weight: 700; }}
.rejected {{ color: #c33; text-decoration: line-through; }} .cut {{ opacity: .5; }}
</style></head><body>
<h1>{title}</h1>
<p><span class="accepted">accepted from the draft</span> · <span class="forced">forced by the
grammar</span> · <span class="bonus">the model's own</span> · <span class="rejected">drafted and
rejected</span> · <span class="cut">drafted and cut before verification; or [hidden], where it was
drafted from another request's text and is not in this answer</span>. A bar is as long as
its round took.</p>
{choices}
</body></html>
"""


def page(told: Mapping[str, Any]) -> str:
    """The timeline as one HTML file that loads nothing."""
    choices = "\n".join(_choice(choice) for choice in told["choices"])
    title = escape(f"Rounds of {told['id']}, {told['model']}")
    return PAGE.format(title=title, choices=choices)


def _choice(choice: Mapping[str, Any]) -> str:
    rounds: Sequence[Round] = choice["rounds"]
    longest = max((one["step_ms"] + one["draft_ms"] for one in rounds), default=1.0)
    items = "\n".join(_round(one, longest) for one in rounds)
    heading = f"Choice {choice['index']}: {escape(summary(choice))}"
    return f"<section><h2>{heading}</h2><ol>\n{items}\n</ol></section>"


def _round(one: Round, longest: float) -> str:
    took = one["step_ms"] + one["draft_ms"]
    why = f"; no longer because of: {escape(one['cut_by'])}" if one["cut_by"] else ""
    who = f" by {escape(one['part'])}" if one["part"] else ""
    meta = (
        f"position {one['position']} · drafted {one['proposed']}{who}, verified {one['verified']}, "
        f"accepted {one['accepted']}, forced {one['forced']}{why} · {took:.1f} ms "
        f"({one['draft_ms']:.1f} drafting) · {one['step_requests']} requests, "
        f"{one['step_rows']} rows"
    )
    spans = "".join(
        f'<span class="{style}">{escape(_visible(text))}</span>' for text, style in _spans(one)
    )
    width = 100 * took / longest
    return (
        f'<li><div class="bar" style="width:{width:.1f}%"></div><code>{spans}</code>'
        f'<div class="meta">{meta}</div></li>'
    )


def _spans(one: Round) -> Iterator[tuple[str, str]]:
    for token in one["committed_tokens"]:
        yield token["text"], token["kind"]
    for token in rejected(one):
        yield token["text"], "rejected"
    cut = one["proposed"] - (one["verified"] - len(one["forced_places"]))
    if cut > 0:
        for token in one["drafted_tokens"][one["proposed"] - cut :]:
            yield token["text"], "cut"
    if one["hidden_tokens"]:
        yield _hidden(one), "cut"
