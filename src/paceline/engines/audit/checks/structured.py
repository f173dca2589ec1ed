"""Structured output: does every answer conform, with drafts in play?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.causes import Sign, cause_of
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.session import PLAIN, Session
from paceline.engines.client import EngineRefused

PROBES = 2
TEMPERATURES = (0.0, 1.0)
TOKENS = 160
SEED = 3_000
PATTERN = r"(red|green|blue)-[0-9]{3}(, (red|green|blue)-[0-9]{3}){4}"
CHOICES = ["yes, certainly", "yes, perhaps", "no, never"]
SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "done": {"type": "boolean"},
    },
    "required": ["color", "count", "done"],
    "additionalProperties": False,
}


class Form(NamedTuple):
    """A form that answers are bound to, as `structured_outputs` takes it, and its judge."""

    name: str
    bound: dict[str, object]
    conforms: Callable[[str], bool]


def _is_object(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if not isinstance(value, dict) or set(value) != {"color", "count", "done"}:
        return False
    count = value["count"]
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 999
    return (
        value["color"] in ("red", "green", "blue") and is_count and value["done"] in (True, False)
    )


FORMS = (
    Form("json", {"json": SCHEMA}, _is_object),
    Form("regex", {"regex": PATTERN}, lambda text: re.fullmatch(PATTERN, text.strip()) is not None),
    Form("choice", {"choice": CHOICES}, lambda text: text.strip() in CHOICES),
)


class StructuredCheck:
    """Binds answers to a JSON schema, a regular expression and a choice."""

    name = "structured"
    asks = "Structured output: does every answer conform?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        times = len(FORMS) * len(TEMPERATURES) * min(PROBES, len(session.probes))
        return Cost(1, session.longest_probe + TOKENS) * times

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        return [_bound(session, form) for form in FORMS]


def _bound(session: Session, form: Form) -> AuditFinding:
    fields = {**PLAIN, "structured_outputs": form.bound}
    asks = [
        EngineAsk(probe.ids, TOKENS, temperature, seed=session.seed + SEED + number, fields=fields)
        for number, probe in enumerate(session.probes[:PROBES])
        for temperature in TEMPERATURES
    ]
    try:
        answers = session.ask_all(asks)
    except EngineRefused as error:
        return AuditFinding(severity=Severity.NOTE, title=f"{form.name} is refused: {error}")
    whole = [answer for answer in answers if answer.finish_reason != "length"]
    wrong = [answer for answer in whole if not form.conforms(answer.text)]
    evidence: Evidence = {
        "answers": len(answers),
        "ended": len(whole),
        "do not conform": len(wrong),
        "drafted tokens": _drafted(answers),
    }
    if not wrong:
        return AuditFinding(severity=Severity.OK, title=f"{form.name}: all that ended conform",
                       evidence=evidence)  # fmt: skip
    evidence["for example"] = repr(wrong[0].text[:80])
    cause, remedy = cause_of(session, Sign.GRAMMAR)
    return AuditFinding(
        severity=Severity.FAILURE,
        title=f"{form.name}: answers do not conform",
        evidence=evidence,
        cause=cause,
        remedy=remedy or "switch speculation off for structured requests",
    )


def _drafted(answers: list[EngineAnswer]) -> int | None:
    told = [answer.drafted for answer in answers if answer.drafted is not None]
    return sum(told) if told else None
