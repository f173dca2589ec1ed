"""Acceptance as users state it, in JSON or in one line. The models themselves: `survival`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.core import InvalidRequest
from paceline.roofline.survival import (
    Acceptance,
    BetaGeometric,
    Geometric,
    Profile,
    Trace,
    of_length,
)

__all__ = [
    "Acceptance",
    "BetaGeometric",
    "Geometric",
    "Profile",
    "Trace",
    "acceptance_of",
    "of_length",
    "parse_acceptance",
    "read_pairs",
]

LISTS = ("conditional", "unconditional", "beta", "accepted", "drafted")
FORMS: dict[frozenset[str], Callable[..., Acceptance]] = {
    frozenset({"alpha"}): Geometric,
    frozenset({"al", "draft_length"}): lambda al, draft_length: of_length(al, draft_length),
    frozenset({"conditional"}): lambda conditional: Profile.of_conditional(conditional),
    frozenset({"unconditional"}): lambda unconditional: Profile.of_unconditional(unconditional),
    frozenset({"beta"}): lambda beta: _beta(beta),
    frozenset({"first", "al", "draft_length"}): lambda first, al, draft_length: BetaGeometric.fit(
        first, al, draft_length
    ),
    frozenset({"accepted", "drafted"}): lambda accepted, drafted: _trace(accepted, drafted),
}
KEYS = frozenset().union(*FORMS)
EXPECTED = (
    "alpha; or al (incl. bonus) and draft_length; or conditional or unconditional rates by "
    "position; or first, al and draft_length (a beta-geometric fit); or beta (its a and b); or "
    "accepted and drafted (of each round)"
)


def acceptance_of(stated: Mapping[str, Any]) -> Acceptance:
    """An acceptance as JSON states it, with exactly the keys of one of FORMS."""
    form = FORMS.get(frozenset(stated))
    if form is None:
        raise InvalidRequest("acceptance", dict(stated), EXPECTED)
    return form(**stated)


def parse_acceptance(text: str) -> Acceptance:
    """The same from one line: `alpha=0.8`, `al=3.5,draft_length=7`, `conditional=0.8,0.7,0.7`."""
    return acceptance_of(read_pairs("acceptance", text, LISTS))


def read_pairs(field: str, text: str, lists: Sequence[str] = ()) -> dict[str, Any]:
    """`key=number,key=number,number` as a dictionary; keys in `lists` take several numbers, all
    others one. What is no number stays text. Raises InvalidRequest."""
    found: dict[str, Any] = {}
    key = ""
    for part in text.split(","):
        before, equals, after = part.partition("=")
        if equals:
            key = before.strip()
            if not key or key in found:
                raise InvalidRequest(field, text, f"each key once; {key!r} is there twice or empty")
            found[key] = []
        elif not key:
            raise InvalidRequest(field, text, "key=value pairs with commas between them")
        found[key].append(_number_or_text((after if equals else part).strip()))
    for key, values in found.items():
        if key not in lists:
            if len(values) > 1:
                raise InvalidRequest(field, text, f"one value for {key}")
            found[key] = values[0]
    return found


def _number_or_text(text: str) -> float | int | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _beta(beta: Any) -> BetaGeometric:
    if isinstance(beta, str) or not isinstance(beta, Sequence) or len(beta) != 2:
        raise InvalidRequest("beta", beta, "two numbers, a and b")
    return BetaGeometric(*beta)


def _trace(accepted: Any, drafted: Any) -> Trace:
    for field, value in (("accepted", accepted), ("drafted", drafted)):
        single = field == "drafted" and isinstance(value, int)
        if isinstance(value, str) or not (single or isinstance(value, Sequence)):
            raise InvalidRequest(field, value, "a list of whole numbers, one for each round")
    if not isinstance(drafted, int):
        # one number stands for all, as a line of text has it; Trace checks what it is
        drafted = drafted[0] if len(drafted) == 1 else tuple(drafted)
    return Trace(tuple(accepted), drafted)
