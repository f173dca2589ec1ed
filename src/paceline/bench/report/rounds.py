"""The rounds of one request: a table in the terminal, and a timeline as one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from paceline.bench.report.pages import render
from paceline.core import TokenKind
from paceline.core.rounds import acceptance_length

STYLES = {
    TokenKind.ACCEPTED: "green",
    TokenKind.FORCED: "cyan",
    TokenKind.BONUS: "bold",
}
REJECTED = "red strike"
HIDDEN = "dim"
ShownRound = Mapping[str, Any]  # as `server.rounds.round_shown` writes it


def table(choice: Mapping[str, Any]) -> Table:
    """Return a row per round: its position, the draft, why it was cut, and what was committed."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("at", "drafted\nverified\naccepted", "forced", "ms"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("by", max_width=8, overflow="fold")
    made.add_column("no longer\nbecause of", max_width=10)
    made.add_column("tokens", overflow="fold", min_width=30)
    for shown in choice["rounds"]:
        counts = f"{shown['proposed']} {shown['verified']} {shown['accepted']}"
        made.add_row(
            str(shown["position"]),
            counts if shown["proposed"] else "",
            str(shown["forced"] or ""),
            f"{_milliseconds(shown):.1f}",
            (shown["part"] or shown["drafter"]) if shown["proposed"] else "",
            shown["cut_by"] or "",
            _tokens(shown),
        )
    return made


def _milliseconds(shown: ShownRound) -> float:
    return float(shown["step_ms"] + shown["draft_ms"])


def _tokens(shown: ShownRound) -> Text:
    text = Text()
    for token in shown["committed_tokens"]:
        text.append(_visible(token["text"]), STYLES[TokenKind(token["kind"])])
    for token in rejected(shown):
        text.append(_visible(token["text"]), REJECTED)
    if shown["hidden_tokens"]:
        text.append(_hidden(shown), HIDDEN)
    return text


def _hidden(shown: ShownRound) -> str:
    return f"[{shown['hidden_tokens']} hidden]"


def rejected(shown: ShownRound) -> list[Mapping[str, Any]]:
    """Return the verified tokens that do not stand."""
    stand = 0
    pairs = zip(shown["verified_tokens"], shown["committed_tokens"], strict=False)
    for verified, committed in pairs:
        if verified["id"] != committed["id"]:
            break
        stand += 1
    return list(shown["verified_tokens"][stand:])


def summary(choice: Mapping[str, Any]) -> str:
    """Return one line on all rounds of a choice."""
    rounds: Sequence[ShownRound] = choice["rounds"]
    drafted = [shown for shown in rounds if shown["verified"] > len(shown["forced_places"])]
    length = acceptance_length(sum(shown["accepted"] for shown in drafted), len(drafted))
    tokens = sum(len(shown["committed_tokens"]) for shown in rounds)
    left_out = choice["rounds_left_out"]
    cuts = _counted(shown["cut_by"] for shown in rounds)
    parts = _counted(shown["part"] for shown in drafted)
    return (
        f"{tokens} tokens in {len(rounds)} rounds, {len(drafted)} of them drafted"
        f"{f' (by {parts})' if parts else ''}; "
        f"AL {length or 1.0:.2f} incl. bonus; forced {sum(shown['forced'] for shown in rounds)}; "
        f"drafts kept short by: {cuts or 'nothing'}"
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


def page(rounds: Mapping[str, Any]) -> str:
    """Return the timeline of a request as one HTML file that loads nothing."""
    title = f"Rounds of {rounds['id']}, {rounds['model']}"
    choices = [
        {
            "index": choice["index"],
            "summary": summary(choice),
            "rounds": list(_timeline(choice["rounds"])),
        }
        for choice in rounds["choices"]
    ]
    return render("rounds.html", {"title": title, "choices": choices})


def _timeline(rounds: Sequence[ShownRound]) -> Iterator[dict[str, Any]]:
    longest = max(map(_milliseconds, rounds), default=1.0)
    for shown in rounds:
        pieces = [(_visible(text), style) for text, style in _pieces(shown)]
        width = 100 * _milliseconds(shown) / longest
        yield {"width": width, "pieces": pieces, "meta": _meta(shown)}


def _meta(shown: ShownRound) -> str:
    cut = f"; no longer because of: {shown['cut_by']}" if shown["cut_by"] else ""
    part = f" by {shown['part']}" if shown["part"] else ""
    return (
        f"position {shown['position']} · drafted {shown['proposed']}{part}, "
        f"verified {shown['verified']}, accepted {shown['accepted']}, "
        f"forced {shown['forced']}{cut} · {_milliseconds(shown):.1f} ms "
        f"({shown['draft_ms']:.1f} drafting) · {shown['step_requests']} requests, "
        f"{shown['step_rows']} rows"
    )


def _pieces(shown: ShownRound) -> Iterator[tuple[str, str]]:
    """Yield the text of each token with its style."""
    for token in shown["committed_tokens"]:
        yield token["text"], token["kind"]
    for token in rejected(shown):
        yield token["text"], "rejected"
    cut = shown["proposed"] - (shown["verified"] - len(shown["forced_places"]))
    if cut > 0:
        for token in shown["drafted_tokens"][shown["proposed"] - cut :]:
            yield token["text"], "cut"
    if shown["hidden_tokens"]:
        yield _hidden(shown), "cut"
