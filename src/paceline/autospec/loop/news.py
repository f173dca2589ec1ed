"""What is new in a journal since somebody looked last, in lines for people."""

from __future__ import annotations

from paceline.autospec.loop.decide import LoopDecision
from paceline.autospec.loop.journal import ChangeRecord, ChangeStage, LoopJournal

ALL_REQUESTS = "all requests"


class LoopNews:
    """Tells what the loop has done, each thing once. What the journal had before is not told, but
    for changes under way: they go on."""

    def __init__(self, journal: LoopJournal) -> None:
        self._journal = journal
        self._last_decision = max((noted.id for noted in journal.decisions()), default=0)
        under_way = {change.id for change in journal.active()}
        self._changes = {
            change.id: progress_of(change)
            for change in journal.changes()
            if change.id not in under_way
        }

    def lines(self) -> list[str]:
        """Return a line for each decision that is new, and for each step of a change."""
        decisions = [n for n in self._journal.decisions() if n.id > self._last_decision]
        lines = [sentences(noted.decision) for noted in reversed(decisions)]
        self._last_decision = max([self._last_decision, *(noted.id for noted in decisions)])
        for change in reversed(self._journal.changes()):
            if self._changes.get(change.id) != progress_of(change):
                lines.append(change_line(change))
                self._changes[change.id] = progress_of(change)
        return lines


def progress_of(change: ChangeRecord) -> tuple[ChangeStage, float]:
    """Return how far a change has come: its stage, and its share of the requests in percent."""
    return change.stage, change.percent


def change_line(change: ChangeRecord) -> str:
    """Return a change as a line: the version, for whom, in place of which, and how far it is."""
    where = f"{change.version} for {change.cohort or ALL_REQUESTS}, in place of {change.replaces}"
    return f"change {change.id} ({change.origin}): {where}: {stage_of(change)}"


def stage_of(change: ChangeRecord) -> str:
    """Return the stage of a change in words, with what led to it."""
    if change.stage is ChangeStage.CANARY:
        return f"canary, {change.percent:g}% of the requests"
    told = change.reason if change.stage.is_over else ""
    if change.stage is ChangeStage.LOADING:
        told = change.progress.score
    return f"{change.stage}: {told}" if told else str(change.stage)


def sentences(decision: LoopDecision) -> str:
    """Return a decision as text: what, where, why, and why not something else."""
    where = f" ({', '.join(cohort or ALL_REQUESTS for cohort in decision.cohorts)})"
    head = f"{decision.kind}: {decision.action}{where if decision.cohorts else ''}."
    return " ".join((head, *decision.why, *decision.why_not))
