"""Launch lines: the words of roofline's table, and what every adapter adds to them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from paceline.core import InvalidRequest
from paceline.engines.kind import LaunchPlan
from paceline.engines.pairing import Pairing
from paceline.roofline.scenario.kinds import lacking, launch_flags

ANY = "llama"  # a family that every engine serves stands for a target whose config is not here
NO_DRAFTS = "ngram"  # launch_flags wants a kind, also for a line without speculation
Prints = Sequence[tuple[re.Pattern[str], str]]


def engine_words(
    engine: str, plan: LaunchPlan, pairing: Pairing, default: Sequence[str]
) -> list[str]:
    """Return the words that serve target and drafter; `default` are those that begin the line in
    roofline's table, in whose place the plan's program stands.

    Raises InvalidRequest where the engine lacks the kind of drafting.
    """
    kind = pairing.kind or NO_DRAFTS
    family = pairing.family or ANY
    written = launch_flags(
        kind,
        pairing.draft_len,
        model=plan.target,
        family=family,
        drafter=None if plan.drafter is None else str(plan.drafter),
        options=plan.devices,
        experts=pairing.experts,
    )[engine]
    if written is None:
        reasons = lacking(kind, pairing.draft_len, family=family, options=plan.devices)
        expected = f"what {engine} can serve: {reasons.get(engine, 'not this')}"
        raise InvalidRequest("plan", pairing.kind or family, expected)
    words = shlex.split(written)
    program = default if plan.program is None else plan.program.command
    return [*program, *words[len(default) :]]


def refuse_extra(plan: LaunchPlan, ours: Sequence[str]) -> None:
    """Raise InvalidRequest for arguments of the user that the plan states itself."""
    for word in plan.extra:
        flag = word.partition("=")[0]
        if flag in ours:
            raise InvalidRequest("extra", word, f"not {flag}, which an option of its own states")


def refuse_table(plan: LaunchPlan) -> None:
    """Raise InvalidRequest for draft lengths by batch size, on an engine without such a table."""
    if plan.draft_lens:
        expected = "no table by batch size: this engine has none"
        raise InvalidRequest("draft_lens", plan.draft_lens, expected)


def optional(flag: str, value: object) -> list[str]:
    """Return a flag and its value; nothing for None."""
    return [] if value is None else [flag, str(value)]


def told(line: str, prints: Prints) -> str | None:
    """Return what the first pattern that a log's line matches says of it."""
    for pattern, text in prints:
        if match := pattern.search(line):
            return match.expand(text)
    return None
