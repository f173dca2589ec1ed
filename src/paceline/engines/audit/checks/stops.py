"""Stop strings: does a text end right before the stop, also inside a draft?"""

from __future__ import annotations

from typing import NamedTuple

from paceline.engines.answers import EngineAnswer, EngineAsk
from paceline.engines.audit.budget import Cost
from paceline.engines.audit.checks.texts import first_difference
from paceline.engines.audit.findings import AuditFinding, Evidence, Severity
from paceline.engines.audit.session import GREEDY_TOKENS, PLAIN, Session, greedy

PROBES = 6
LENGTHS = (3, 8)  # characters of a stop string: inside one token, and over several
PLACES = (0.3, 0.6)  # of the text, where each is looked for


class StopTrial(NamedTuple):
    """A stop string, the request with it, and the text that must come."""

    stop: str
    ask: EngineAsk
    free: EngineAnswer
    expected: str


class StopCheck:
    """Takes stop strings from the middle of texts of T = 0, and asks again with them."""

    name = "stops"
    asks = "Stop strings: does the text end right before them?"
    tests = 0

    def needs(self, session: Session) -> str | None:
        return None

    def cost(self, session: Session, scale: int = 1) -> Cost:
        probes = min(PROBES, len(session.probes))
        each = Cost(1, session.longest_probe + GREEDY_TOKENS)
        return each * (probes * (1 + len(LENGTHS)))

    def run(self, session: Session, scale: int = 1) -> list[AuditFinding]:
        probes = session.probes[:PROBES]
        free = session.ask_all([greedy(probe) for probe in probes])
        trials = [
            trial
            for probe, answer in zip(probes, free, strict=True)
            for trial in _trials(probe.ids, answer)
        ]
        answers = session.ask_all([trial.ask for trial in trials])
        dropped, other, unjudged = list[str](), list[str](), 0
        for trial, answer in zip(trials, answers, strict=True):
            if answer.text == trial.expected and answer.finish_reason == "stop":
                continue
            if _diverged(trial, answer):
                unjudged += 1  # near ties: the text is another one already before the stop
            elif trial.stop in answer.text:
                dropped.append(trial.stop)
            else:
                other.append(trial.stop)
        return [_finding(len(trials), dropped, other, unjudged)]


def _trials(ids: list[int], free: EngineAnswer) -> list[StopTrial]:
    text, trials = free.text, list[StopTrial]()
    for length, place in zip(LENGTHS, PLACES, strict=True):
        start = int(place * len(text))
        # the stop must stand here first; a character of several tokens may not be cut
        while start + length < len(text) and text.find(text[start : start + length]) < start:
            start += 1
        stop = text[start : start + length]
        if len(stop) < length or not stop.strip() or "�" in stop:
            continue
        ask = EngineAsk(ids, GREEDY_TOKENS, 0.0, fields={**PLAIN, "stop": [stop]})
        trials.append(StopTrial(stop, ask, free, text[:start]))
    return trials


def _diverged(trial: StopTrial, answer: EngineAnswer) -> bool:
    """Return whether the answer's tokens leave those of the free text before the stop."""
    place = first_difference(answer.token_ids, trial.free.token_ids)
    ended = min(len(answer.token_ids), len(trial.free.token_ids))
    return place is not None and place < ended and not answer.text.startswith(trial.expected)


def _finding(trials: int, dropped: list[str], other: list[str], unjudged: int) -> AuditFinding:
    evidence: Evidence = {"stops": trials, "ignored": len(dropped), "cut elsewhere": len(other)}
    if unjudged:
        evidence["not judged, near ties"] = unjudged
    if not trials:
        return AuditFinding(
            severity=Severity.NOTE, title="no text was long enough for a stop string"
        )
    if not dropped and not other:
        return AuditFinding(severity=Severity.OK, title="texts end before their stop strings",
                       evidence=evidence)  # fmt: skip
    evidence["for example"] = repr((dropped or other)[0])
    words = "stop strings are ignored" if dropped else "texts do not end where the stop stands"
    return AuditFinding(
        severity=Severity.FAILURE,
        title=words,
        evidence=evidence,
        remedy="cut texts in the client until this is mended; with speculation a stop may stand in "
        "the middle of a round's tokens",
    )
