"""The rounds of one request: a table in the terminal, and a timeline as one HTML file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from paceline.bench.report.pages import render
from paceline.bench.report.tables import base_table
from paceline.core.rounds import acceptance_length

STYLES = {
    "accepted": "green",
    "forced": "cyan",
    "bonus": "bold",
    "rejected": "red strike",
    "hidden": "dim",
}
MEANINGS = {
    "accepted": "accepted from the draft",
    "forced": "forced by the grammar",
    "bonus": "the model's own",
    "rejected": "drafted and rejected",
    "hidden": "[hidden]",
}
Shown = Mapping[str, Any]  # an answer, a choice, a round or a token, as `server.rounds` writes it


def table(choice: Shown) -> Table:
    """Return a row per round: its position, the draft, why it was cut, and what was committed."""
    made = base_table("", numbers=("at", "drafted\nverified\naccepted", "forced", "ms"))
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
            Text.assemble(*((t, STYLES[kind]) for t, kind in _pieces(shown) if kind in STYLES)),
        )
    return made


def _milliseconds(shown: Shown) -> float:
    return float(shown["step_ms"] + shown["draft_ms"])


def rejected(shown: Shown) -> list[Shown]:
    """Return the verified tokens that do not stand."""
    stand = 0
    pairs = zip(shown["verified_tokens"], shown["committed_tokens"], strict=False)
    for verified, committed in pairs:
        if verified["id"] != committed["id"]:
            break
        stand += 1
    return list(shown["verified_tokens"][stand:])


def summary(choice: Shown) -> str:
    """Return one line on all rounds of a choice."""
    rounds: Sequence[Shown] = choice["rounds"]
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
    counts = Counter(name for name in names if name)
    return ", ".join(f"{name} {count}×" for name, count in sorted(counts.items()))


def legend() -> Text:
    meanings = (Text(MEANINGS[kind], style) for kind, style in STYLES.items())
    behind = " drafted from another request's text and not in this answer"
    counts = "counts: tokens drafted, verified and accepted in the round\n"
    return Text.assemble(counts, "tokens: ", Text(" · ").join(meanings), behind)


def page(rounds: Shown) -> str:
    """Return the timeline of a request as one HTML file that loads nothing."""
    title = f"Rounds of {rounds['id']}, {rounds['model']}"
    values = {"choices": rounds["choices"], "summary": summary, "timeline": _timeline}
    return render("rounds.html", {"title": title, **values})


def _timeline(rounds: Sequence[Shown]) -> Iterator[dict[str, object]]:
    longest = max(map(_milliseconds, rounds), default=1.0)
    for shown in rounds:
        width = 100 * _milliseconds(shown) / longest
        yield {"width": width, "pieces": _pieces(shown), "meta": _meta(shown)}


def _meta(shown: Shown) -> str:
    cut = f"; no longer because of: {shown['cut_by']}" if shown["cut_by"] else ""
    part = f" by {shown['part']}" if shown["part"] else ""
    return (
        f"position {shown['position']} · drafted {shown['proposed']}{part}, "
        f"verified {shown['verified']}, accepted {shown['accepted']}, "
        f"forced {shown['forced']}{cut} · {_milliseconds(shown):.1f} ms "
        f"({shown['draft_ms']:.1f} drafting) · {shown['step_requests']} requests, "
        f"{shown['step_rows']} rows"
    )


def _pieces(shown: Shown) -> list[tuple[str, str]]:
    """Return the text of each token with what became of it: a kind of STYLES, or "cut"."""
    pieces = [(token["text"], token["kind"]) for token in shown["committed_tokens"]]
    pieces += [(token["text"], "rejected") for token in rejected(shown)]
    cut = shown["proposed"] - (shown["verified"] - len(shown["forced_places"]))
    if cut > 0:
        left = shown["drafted_tokens"][shown["proposed"] - cut :]
        pieces += [(token["text"], "cut") for token in left]
    if shown["hidden_tokens"]:
        pieces.append((f"[{shown['hidden_tokens']} hidden]", "hidden"))
    return [(text.replace("\n", "⏎").replace("\t", "⇥"), kind) for text, kind in pieces]
