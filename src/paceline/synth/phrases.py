"""Prompts out of phrases with slots: a few dozen of one's own become as many as are needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.fields import Fields
from paceline.synth.prompts import keyed
from paceline.synth.source_spec import SourceSpec

SLOT = re.compile(r"\{(\w+)\}")
COUNT = 1000  # prompts where the source does not say how many


def filled(spec: SourceSpec, given: Any) -> Iterator[str]:
    """`count` texts, phrase after phrase, always the same. A file has `phrases`, and `slots` with
    the values that each {slot} may have; `#` in a value is any digit.

    Raises InvalidRequest for a file of another form, and a slot that it has no values for.
    """
    fields = Fields(given, f"{spec.where}.path", ("phrases", "slots"))
    phrases = fields.texts("phrases")
    names = sorted({name for phrase in phrases for name in SLOT.findall(phrase)})
    slots = _slots(fields, names)
    for number in range(spec.count or COUNT):
        phrase = phrases[number % len(phrases)]
        yield _filled(phrase, slots, spec.name, number)


def _slots(fields: Fields, names: Sequence[str]) -> dict[str, list[str]]:
    slots = fields.any("slots", {})
    for name in [*names, *slots]:
        values = slots.get(name)
        right = isinstance(values, list) and values and name in names
        if not right or not all(isinstance(value, str) for value in values):
            expected = "texts for each {slot} that a phrase has, and for no other"
            raise InvalidRequest(fields.named(f"slots.{name}"), values, expected)
    return dict(slots)


def _filled(phrase: str, slots: Mapping[str, Sequence[str]], source: str, number: int) -> str:
    def value(slot: re.Match[str]) -> str:
        values = slots[slot[1]]
        draw = keyed("slot", source, number, slot[1])
        text = values[draw % len(values)]
        return re.sub("#", lambda mark: str(keyed(draw, mark.start()) % 10), text)

    return SLOT.sub(value, phrase)
