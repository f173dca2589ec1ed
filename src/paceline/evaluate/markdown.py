"""An evaluation as Markdown: the table of a model card, and what changed since another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core import InvalidRequest
from paceline.core.rounds import counted_rounds
from paceline.evaluate import numbers, words
from paceline.evaluate.measure import DRAFTER, NGRAM, SUFFIX

LIMIT = 0.05  # a fall of the acceptance length by more than this share is marked
Result = Mapping[str, Any]


def evaluation_table(result: Result) -> str:
    """A Markdown table of what evaluate() found, with the acceptance by position below it.

    Raises InvalidRequest for a dictionary of another format.
    """
    words.check_format(result, "a dictionary")
    own = result["drafters"][DRAFTER]["block"]
    header = ["set", "", "T", "AL incl. bonus (95%)", "ngram", "suffix, warmed",
              "speedup over AR (95%)", "whole block always", "÷ AL", "requests"]  # fmt: skip
    rows = [
        [one["set"], one["role"], f"{one['temperature']:g}", words.al(one),
         *(words.number(one["acceptance"][who]["al"]) for who in (NGRAM, SUFFIX)),
         words.speedup(one), words.speedup(one, words.BLOCK),
         words.number(one["speed"][words.BLOCK]["speedup_per_token"]), str(one["requests"])]
        for one in result["results"]
    ]  # fmt: skip
    shares = [
        [one["set"], f"{one['temperature']:g}",
         *(words.percent(p["share"]) for p in one["acceptance"][DRAFTER]["positions"])]
        for one in result["results"]
    ]  # fmt: skip
    bound = [
        f"- {one['set']}, T = {one['temperature']:g}: {said}"
        for one in result["results"]
        if (said := words.bound(one)) is not None
    ]
    return "\n\n".join(
        (
            table(header, rows),
            "Share of rounds that accepted at least so many draft tokens:",
            table(["set", "T", *map(str, range(1, own + 1))], shares),
            *(["\n".join(bound)] if bound else []),
            f"{words.described(result)}. {words.same_text(result).capitalize()}.",
        )
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- before and after ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A set at one temperature, before and after. `ratio` is AL after ÷ before, `interval` its 95%
    bootstrap over the requests, which are the same."""

    name: str
    role: str
    temperature: float
    before: float
    after: float
    interval: list[float] | None

    @property
    def ratio(self) -> float:
        return self.after / self.before

    def fell(self, limit: float) -> bool:
        return self.ratio < 1 - limit


def changes(before: Result, after: Result) -> list[Change]:
    """Of every set and temperature that both have.

    Raises InvalidRequest where they cannot be compared: field `before` for another model, other
    settings, other prompts, or nothing in common; `tokens` where neither counts a round.
    """
    check_comparable(before, after["model"], after["settings"])
    old = {(one["set"], one["temperature"]): one for one in before["results"]}
    both = [
        (old[key], one)
        for one in after["results"]
        if (key := (one["set"], one["temperature"])) in old
    ]
    if not both:
        raise InvalidRequest("before", sorted({name for name, _ in old}), "a set in common")
    found = [change for each in both for change in _change(*each, before, after)]
    if not found:
        block = after["drafters"][DRAFTER]["block"]
        expected = f"answers long enough to count a round of {block} draft tokens in"
        raise InvalidRequest("tokens", after["settings"]["tokens"], expected)
    return found


def check_comparable(before: Result, model: str, settings: Mapping[str, Any]) -> None:
    words.check_format(before, "before")
    if before["model"] != model:
        raise InvalidRequest("before", before["model"], f"an evaluation of {model}")
    for key in ("tokens", "seed", "warm"):
        then, now = (each.get(key, False) for each in (before["settings"], settings))
        if then != now:
            raise InvalidRequest("before", f"{key} {then}", f"an evaluation with {key} {now}")


def _change(
    old: Mapping[str, Any], new: Mapping[str, Any], before: Result, after: Result
) -> Iterator[Change]:
    """Nothing where either has no rounds to count."""
    rows = old["rows"], new["rows"]
    for key, expected in (
        ("prompt_sha256", "of the same prompts (the set, or --prompts, was another)"),
        ("grammar_sha256", "whose answers were bound as these are, to the same grammar"),
    ):
        told = [[row.get(key) for row in each] for each in rows]
        if told[0] != told[1]:
            raise InvalidRequest("before", new["set"], f"an evaluation {expected}")
    als = [one["acceptance"][DRAFTER]["al"] for one in (old, new)]
    if None in als:
        return
    sums = [
        np.array([_committed(row, result) for row in each], dtype=float)
        for each, result in zip(rows, (before, after), strict=True)
    ]
    yield Change(
        name=new["set"],
        role=new["role"],
        temperature=new["temperature"],
        before=als[0],
        after=als[1],
        interval=_ratio_interval(*sums),
    )


def _committed(row: Mapping[str, Any], result: Result) -> tuple[int, int]:
    """Tokens and rounds of one request."""
    block = result["drafters"][DRAFTER]["block"]
    tokens = result["settings"]["tokens"]
    rounds = counted_rounds(row, words.BLOCK, tokens=tokens, block=block)
    return sum(1 + each.accepted for each in rounds), len(rounds)


def _ratio_interval(old: Any, new: Any) -> list[float] | None:
    """[requests, 2] each: the same requests are drawn for both."""
    count = len(old)
    if count < numbers.FEWEST:
        return None
    chosen = np.random.default_rng(0).integers(0, count, (numbers.DRAWS, count))
    before, after = old[chosen].sum(1), new[chosen].sum(1)
    kept = (before[:, 1] > 0) & (after[:, 1] > 0)
    ratios = (after[kept, 0] / after[kept, 1]) / (before[kept, 0] / before[kept, 1])
    return [float(edge) for edge in np.percentile(ratios, [2.5, 97.5])]


def regressions(before: Result, after: Result, limit: float = LIMIT) -> list[str]:
    """A line for each set whose acceptance length fell by more than `limit`, on task or out of
    domain. Raises InvalidRequest where the two cannot be compared."""
    return [
        f"{one.name} ({one.role}, T = {one.temperature:g}): AL {one.before:.2f} → {one.after:.2f} "
        f"incl. bonus, {100 * (one.ratio - 1):+.1f}%"
        for one in changes(before, after)
        if one.fell(limit)
    ]


def compare(before: Result, after: Result, limit: float = LIMIT) -> str:
    """Before and after as a Markdown table, with a mark where a set fell by more than `limit`.

    Raises InvalidRequest where the two cannot be compared.
    """
    found = changes(before, after)
    rows = [
        [one.name, one.role, f"{one.temperature:g}", f"{one.before:.2f}", f"{one.after:.2f}",
         f"{100 * (one.ratio - 1):+.1f}%", _percents(one.interval),
         f"**fell by more than {100 * limit:g}%**" if one.fell(limit) else ""]
        for one in found
    ]  # fmt: skip
    header = ["set", "", "T", "AL before", "AL after", "change", "95%", ""]
    lines = [table(header, rows)]
    pairs = {(one.name, one.temperature) for one in found}
    for result, when in ((before, "before"), (after, "after")):
        alone = [
            f"{one['set']} (T = {one['temperature']:g})"
            for one in result["results"]
            if (one["set"], one["temperature"]) not in pairs
        ]
        if alone:
            lines.append(f"Only {when}: {', '.join(alone)}.")
    return "\n\n".join(lines)


def _percents(interval: list[float] | None) -> str:
    if interval is None:
        return words.NOTHING
    return " to ".join(f"{100 * (edge - 1):+.1f}%" for edge in interval)
