"""Numbers as reports write them, the same in terminal, page and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

NOTHING = "–"


def number(value: float | None, unit: str = "", digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"


def with_interval(value: float | None, interval: Sequence[float] | None, unit: str = "") -> str:
    """`2.31× (2.10–2.52)`."""
    if value is None or interval is None:
        return number(value, unit)
    low, high = interval
    return f"{value:.2f}{unit} ({low:.2f}–{high:.2f})"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f}%"


def change(ratio: float) -> str:
    """`+3.1%`."""
    return f"{100 * (ratio - 1):+.1f}%"


def count(amount: int, thing: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{amount} {thing}" + ("" if amount == 1 else "s")


def tokens_short(tokens: int) -> str:
    """`512`, `2k`."""
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)


def plain(value: float) -> str:
    """`0.7`, `1`."""
    return f"{value:g}"


def cell(text: str) -> str:
    """Text as a Markdown table takes it."""
    return text.replace("|", "\\|")


FILTERS: dict[str, Callable[..., str]] = {
    "cell": cell,
    "change": change,
    "number": number,
    "percent": percent,
    "plain": plain,
}
