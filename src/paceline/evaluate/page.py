"""An evaluation as one HTML file that loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from paceline.core.rounds import speedup_points
from paceline.evaluate import numbers, words
from paceline.evaluate.charts import Bar, bars, cloud
from paceline.evaluate.measure import DRAFTER, FULL, NGRAM, SUFFIX, THROUGHPUT, WHO

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --line: #8884; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; }}
body {{ padding: 0 1rem; }}
.charts {{ display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); }}
.chart {{ width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .2rem .7rem; text-align: right; }}
th {{ vertical-align: bottom; }} th:first-child, td:first-child {{ text-align: left; }}
.meta {{ opacity: .8; font-size: 13px; }} .bad {{ color: #c33; font-weight: 700; }}
</style></head><body>
<h1>{title}</h1>
<p class="meta">{described}</p>
<p{warning}>{same}</p>
{body}
<h2>What the numbers are</h2>
{legend}
</body></html>
"""
LEGEND = (
    ("AL", "tokens committed per round including the bonus token: the mean over all rounds, with "
     "drafts of the whole block; 1 is a drafter that is never right. In brackets the 95% "
     "bootstrap interval over requests."),
    ("mean of requests", "the mean of each request's own AL; it counts short answers as much as "
     "long ones."),
    ("by position", "the share of all rounds in which at least so many draft tokens stood. AL is 1 "
     "and the sum of these."),
    ("context", "tokens before the anchor, the last committed token, when the block was drafted."),
    ("speedup", "seconds of plain decoding (AR) ÷ seconds with the drafter, over the same tokens "
     "of the same prompts, in turns in this run. “throughput” is the engine's default policy, "
     "which drafts as much as pays; “full” always drafts the whole block."),
    ("tokens per round", "what the speedup would be if drafting and verifying cost nothing: the "
     "line y = x of the scatter."),
    ("÷", "speedup ÷ tokens per round: the share of that which was kept."),
    ("counted", "answers end for all numbers where they start to loop: where a run of at least 12 "
     "tokens has stood three times in a row, or 16 tokens were said a third time, they are cut "
     "after its first turn."),
    ("forced", "where an application's grammar leaves exactly one token, that token is committed "
     "without a forward of its own, by plain decoding as well. No round's AL counts such tokens; "
     "the time per token does, with AR and with drafts."),
    ("suffix, warmed", "suffix decoding that has seen answers to other prompts before, as it would "
     "have after a while of serving."),
)  # fmt: skip


def page(result: Mapping[str, Any]) -> str:
    """The report. Raises InvalidRequest for a dictionary of another format."""
    words.check_format(result, "a dictionary")
    temperatures = result["settings"]["temperatures"]
    sections = [
        _temperature(result, value, [o for o in result["results"] if o["temperature"] == value])
        for value in temperatures
    ]
    legend = "".join(f"<dt><b>{escape(a)}</b></dt><dd>{escape(b)}</dd>" for a, b in LEGEND)
    return PAGE.format(
        title=escape(f"{result['drafter']} for {result['model']}"),
        described=escape(words.described(result)),
        warning="" if result["same_text"] else ' class="bad"',
        same=escape(f"{words.same_text(result)} (AR and every drafter, token for token)"),
        body="\n".join(sections),
        legend=f"<dl>{legend}</dl>",
    )


def _temperature(result: Mapping[str, Any], value: float, found: Sequence[Any]) -> str:
    called = words.names(result)
    groups = [[_al_bar(one, who, called[who]) for who in WHO] for one in found]
    overview = bars(
        [one["set"] for one in found],
        list(called.values()),
        groups,
        title="Acceptance length by set",
        x_label="set",
        y_label="AL incl. bonus",
        line=1.0,
    )
    everywhere = _cloud(result, [row for one in found for row in one["rows"]], "every set")
    sets = "\n".join(_set(result, one) for one in found)
    return (
        f"<h2>T = {value:g}</h2>\n{_acceptance_table(result, found)}\n{_speed_table(found)}\n"
        f'<div class="charts">{overview}{everywhere}</div>\n{sets}'
    )


def _al_bar(one: Mapping[str, Any], who: str, called: str) -> Bar:
    found = one["acceptance"][who]
    note = f"{called} on {one['set']}: {words.al(one, who)}, {found['rounds']} rounds"
    return Bar(found["al"], note, found["al_interval"])


def _acceptance_table(result: Mapping[str, Any], found: Sequence[Any]) -> str:
    called = words.names(result)
    header = ["set", "", f"AL, {called[DRAFTER]}", "mean of requests", f"AL, {called[NGRAM]}",
              f"AL, {called[SUFFIX]}", "requests", "of them looping", "rounds",
              "tokens counted"]  # fmt: skip
    rows = [
        [one["set"], one["role"], words.al(one),
         words.number(one["acceptance"][DRAFTER]["al_mean_of_requests"]),
         words.al(one, NGRAM), words.al(one, SUFFIX), str(one["requests"]), str(one["looping"]),
         str(one["acceptance"][DRAFTER]["rounds"]),
         f"{one['counted_tokens']} of {one['output_tokens']}"]
        for one in found
    ]  # fmt: skip
    return _table(header, rows)


def _speed_table(found: Sequence[Any]) -> str:
    header = ["set", "drafter", "policy", "speedup over AR", "tokens per round", "÷", "TPOT",
              "TPOT, AR", "same text"]  # fmt: skip
    rows = [
        [one["set"], *side.split("/"), words.speedup(one, side),
         words.number(speed["tokens_per_round"]), words.number(speed["speedup_per_token"]),
         words.number(speed["tpot_ms"], " ms", 1), words.number(speed["ar_tpot_ms"], " ms", 1),
         "yes" if all(row["same_text"][side] for row in one["rows"]) else "NO"]
        for one in found
        for side, speed in one["speed"].items()
    ]  # fmt: skip
    return _table(header, rows)


def _set(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    who = "suffix and the drafter itself were" if words.warm(result) else "suffix was"
    notes = [f"{who} warmed with {one['warmed']}"]
    if one["left_out"]:
        notes.append(f"{one['left_out']} prompts were longer than the context allows: left out")
    if (bound := words.bound(one)) is not None:
        notes.insert(0, bound)
    charts = [_positions(result, one), _contexts(result, one),
              _cloud(result, one["rows"], one["set"])]  # fmt: skip
    return (
        f"<h3>{escape(one['set'])} ({escape(one['role'])}), T = {one['temperature']:g}</h3>\n"
        f'<p class="meta">{escape("; ".join(notes))}</p>\n'
        f'<div class="charts">{"".join(charts)}</div>\n'
        f"<details><summary>by position and context, in numbers</summary>"
        f"{_position_table(result, one)}{_context_table(result, one)}</details>\n"
        f"<details><summary>every request</summary>{_requests(result, one)}</details>"
    )


def _positions(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    block, called = result["drafters"][DRAFTER]["block"], words.names(result)
    values = []
    for k in range(block):
        row = []
        for who in WHO:
            found = one["acceptance"][who]["positions"]
            share = found[k]["share"] if k < len(found) else None
            note = f"{called[who]}, position {k + 1}: {words.percent(share)} of all rounds"
            if k < len(found):
                note += f", {words.percent(found[k]['conditional'])} of those that came to it"
            row.append(Bar(share, note))
        values.append(row)
    return bars(
        [str(k + 1) for k in range(block)],
        list(called.values()),
        values,
        title=f"Acceptance by position: {one['set']}",
        x_label="draft position",
        y_label="share of rounds that accepted it",
    )


def _contexts(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    called = words.names(result)
    bins = sorted({(c["from"], c["to"]) for w in WHO for c in one["acceptance"][w]["contexts"]})
    known = {who: {c["from"]: c for c in one["acceptance"][who]["contexts"]} for who in WHO}
    values = [
        [_context_bar(known[who].get(start), called[who]) for who in WHO] for start, _ in bins
    ]
    return bars(
        [words.context({"from": start, "to": end}) for start, end in bins],
        list(called.values()),
        values,
        title=f"Acceptance length by context: {one['set']}",
        x_label="tokens before the anchor",
        y_label="AL incl. bonus",
        line=1.0,
    )


def _context_bar(found: Mapping[str, Any] | None, called: str) -> Bar:
    if found is None:
        return Bar(None)
    note = (
        f"{called}, {words.context(found)} tokens: AL {found['al']:.2f}, {found['rounds']} rounds"
    )
    return Bar(found["al"], note)


def _cloud(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], name: str) -> str:
    tokens = result["settings"]["tokens"]
    policies = (THROUGHPUT, FULL)
    found = [speedup_points(rows, f"{DRAFTER}/{policy}", tokens=tokens) for policy in policies]
    noted = [
        [(x, y, f"{prompt}, {policy}: {y:.2f}× at {x:.2f} tokens per round") for x, y, prompt in p]
        for policy, p in zip(policies, found, strict=True)
    ]
    return cloud(
        [f"{result['drafter']}, {policy}" for policy in policies],
        noted,
        title=f"Speedup against tokens per round: {name}",
        x_label="tokens per round incl. bonus (AL), of each request",
        y_label="speedup over AR",
    )


# -- tables ----------------------------------------------------------------------------------------


def _position_table(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    called = words.names(result)
    longest = max(len(one["acceptance"][who]["positions"]) for who in WHO)
    rows = []
    for who in WHO:
        found = one["acceptance"][who]["positions"]
        for key, label in (("share", "of all rounds"), ("conditional", "of those that came to it")):
            cells = [words.percent(p[key]) for p in found]
            rows.append([f"{called[who]}, {label}", *cells, *[""] * (longest - len(cells))])
    return _table(["accepted", *map(str, range(1, longest + 1))], rows)


def _context_table(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    called = words.names(result)
    rows = [
        [called[who], words.context(c), words.number(c["al"]), str(c["rounds"])]
        for who in WHO
        for c in one["acceptance"][who]["contexts"]
    ]
    return _table(["drafter", "tokens before the anchor", "AL", "rounds"], rows)


def _requests(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    header = ["prompt", "its tokens", "output", "counted", "AL", "speedup, throughput",
              "speedup, full", "same text"]  # fmt: skip
    return _table(header, [list(_request(result, row)) for row in one["rows"]])


def _request(result: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    tokens, block = result["settings"]["tokens"], result["drafters"][DRAFTER]["block"]
    yield str(row["prompt"])
    yield from (str(row[key]) for key in ("prompt_tokens", "output_tokens", "counted_tokens"))
    yield words.number(numbers.acceptance([row], words.BLOCK, tokens=tokens, block=block)["al"])
    for side in (words.POLICY, words.BLOCK):
        yield words.number(numbers.speed([row], side, tokens=tokens)["speedup"], "×")
    yield "yes" if all(row["same_text"].values()) else "NO"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}\n</table></div>'
