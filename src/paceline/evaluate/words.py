"""How an evaluation's numbers are written, the same in terminal, page and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core import InvalidRequest
from paceline.evaluate.measure import DRAFTER, FULL, NGRAM, SUFFIX, THROUGHPUT, WHO

FORMAT = "paceline-evaluation/1"
POLICY, BLOCK = f"{DRAFTER}/{THROUGHPUT}", f"{DRAFTER}/{FULL}"
NOTHING = "–"
KINDS = {"json_schema": "a JSON schema", "regex": "a regex", "lark": "a Lark grammar"}


def check_format(given: Any, where: str) -> Mapping[str, Any]:
    """Raises InvalidRequest (field `evaluation`) for what evaluate() did not write."""
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        expected = f"what `paceline evaluate` wrote, in the format {FORMAT}"
        raise InvalidRequest("evaluation", where, expected)
    return given


def names(result: Mapping[str, Any]) -> dict[str, str]:
    """What the drafters are called, by WHO."""
    return dict(zip(WHO, (str(result["drafter"]), NGRAM, f"{SUFFIX}, warmed"), strict=True))


def number(value: float | None, unit: str = "", digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"


def with_interval(value: float | None, interval: Sequence[float] | None, unit: str = "") -> str:
    """`2.31× (2.10–2.52)`."""
    if value is None or interval is None:
        return number(value, unit)
    low, high = interval
    return f"{value:.2f}{unit} ({low:.2f}–{high:.2f})"


def al(one: Mapping[str, Any], who: str = DRAFTER) -> str:
    found = one["acceptance"][who]
    return with_interval(found["al"], found["al_interval"])


def speedup(one: Mapping[str, Any], side: str = POLICY) -> str:
    found = one["speed"][side]
    return with_interval(found["speedup"], found["speedup_interval"], "×")


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f}%"


def context(one: Mapping[str, Any]) -> str:
    """A bin of contexts: `128–256`."""
    return f"{_short(one['from'])}–{_short(one['to'])}"


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)


def bound(one: Mapping[str, Any]) -> str | None:
    """What a set's answers were bound to, and how much of them that is; None where they are free,
    and in a result that is older than this."""
    grammar = one.get("grammar")
    if grammar is None:
        return None
    return (
        f"{one['bound']} of {one['requests']} answers were bound to {KINDS[grammar['kind']]} "
        f"({grammar['sha256'][:8]}) as the application binds them: {one['forced_tokens']} of "
        f"{one['counted_tokens']} counted tokens were forced, and are in no AL"
    )


def warm(result: Mapping[str, Any]) -> bool:
    """Whether the drafter remembered the answers that suffix was warmed with."""
    return bool(result["settings"].get("warm", False))


def same_text(result: Mapping[str, Any]) -> str:
    return f"same text: {'yes' if result['same_text'] else 'NO'}"


def described(result: Mapping[str, Any]) -> str:
    """One line: who, on what, how much."""
    settings, machine, own = result["settings"], result["machine"], result["drafters"][DRAFTER]
    form = machine["quantize"] or machine["dtype"]
    runs = _count(settings["runs"], "paired run")
    threads = _count(machine["threads"], "thread")
    place = f"{machine['name']}, {threads}, {machine['device']}, {form}"
    warmed = ", warmed as suffix is" if warm(result) else ""
    return (
        f"{result['drafter']} ({own['version']}, drafts of up to {own['block']}{warmed}) for "
        f"{result['model']}; up to {settings['prompts']} prompts of each set, up to "
        f"{settings['tokens']} new tokens, {runs}; {place}; "
        f"Paceline {result['paceline']}, {result['date'][:10]}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
