"""Which live versions draft for a cohort: those that its scores and its requests favour (Hedge).

Off unless the policy says `routing.enabled`. Every live version can be scored on a cohort's answers
without drafting for anybody, so no request is spent on trying them. A cohort that is under change
is left as it is. What follows is kept in the store: `reconcile` makes routes of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from typing import Any

from paceline.autospec.hedge import DrafterEvidence, choose_drafters
from paceline.autospec.loop.calendar import DriftCalendar
from paceline.autospec.loop.change import SCORED_ON, SETTLED_SECONDS, ChangeTools
from paceline.autospec.loop.evidence import CohortRounds, live_rounds
from paceline.autospec.loop.routed import RoutedCohort, routed_cohorts
from paceline.autospec.store import ALL
from paceline.core import PacelineError

SCORES, REQUESTS = "scores", "requests"  # where evidence is from
SCORED_ANSWERS = 100  # of a cohort, the latest


class CohortRouting:
    """Shares cohorts out. It looks anew every hour, and where other versions are live or under
    change."""

    def __init__(self, tools: ChangeTools, calendar: DriftCalendar) -> None:
        self._tools, self._calendar = tools, calendar
        self._policy = tools.policy.routing
        self._looked: object = None

    def update(self) -> None:
        """Keep in the store how cohorts are shared out now. Raises InvalidRequest for traces that
        cannot be read, and StoreError."""
        store = self._tools.store
        if not self._policy.enabled:
            if store.database.rows("SELECT 1 FROM routings LIMIT 1"):
                self._keep([])
            return
        hour = self._calendar.hour_of(self._tools.clock())
        situation = (hour, store.live(), self._changing())
        if situation != self._looked:
            self._score()
            self._keep(self.favoured())
            self._looked = situation

    def favoured(self) -> list[RoutedCohort]:
        """Return how the evidence of now shares cohorts out, the busiest ones first."""
        tools, live = self._tools, self._tools.store.live()
        names = sorted({*live.values()})
        if not self._policy.enabled or len(names) < 2:
            return []
        before = {routed.cohort: routed for routed in routed_cohorts(tools.store)}
        favoured = []
        for cohort, rounds in self._busy(names).items():
            evidence = self._evidence(cohort, rounds, names)
            if cohort in self._changing() or not evidence:
                continue
            choice = choose_drafters(cohort, names, evidence, self._policy)
            if choice.best != live.get(cohort, live.get(ALL)):
                source = " and ".join(dict.fromkeys(batch.source for batch in evidence))
                routed = RoutedCohort(cohort, choice.shares, source, choice.why, tools.clock())
                favoured.append(self._lasting(routed, before.get(cohort)))
        return favoured

    def _lasting(self, routed: RoutedCohort, before: RoutedCohort | None) -> RoutedCohort:
        """Return the shares of before, where they differ too little to move sessions."""
        if before is None:
            return routed
        names = routed.shares.keys() | before.shares.keys()
        moved = max(abs(routed.shares.get(n, 0.0) - before.shares.get(n, 0.0)) for n in names)
        return before if moved < self._policy.least_share else routed

    def _busy(self, names: Collection[str]) -> dict[str, CohortRounds]:
        """Return what the requests of the cohorts with the most rounds say."""
        now = self._tools.clock()
        since = now - self._policy.days * self._calendar.day_seconds
        found = live_rounds(
            self._tools.traces, since, now - SETTLED_SECONDS, names,
            self._calendar.day_seconds,
        )  # fmt: skip
        busiest = sorted(found, key=lambda cohort: -found[cohort].total)
        return {cohort: found[cohort] for cohort in busiest[: self._policy.most_cohorts]}

    def _evidence(
        self, cohort: str, rounds: CohortRounds, names: Sequence[str]
    ) -> list[DrafterEvidence]:
        """Return the batches of evidence, the oldest first; each says something about two versions
        or more."""
        least = self._policy.batch_rounds
        batches: list[DrafterEvidence] = []
        scores = self._scores(cohort, names)
        if len(scores) >= 2:
            al = {name: value for name, (value, _) in scores.items()}
            count = min(rounds for _, rounds in scores.values())
            ceiling = max(rounds.ceiling, *(math.ceil(value) for value in al.values()))
            batches += [DrafterEvidence(SCORES, al, ceiling)] * self._copies(count)
        for day in rounds.days:
            known = {name: sums for name, sums in day.items() if sums.rounds >= least}
            if len(known) >= 2:
                al = {name: sums.tokens_per_round for name, sums in known.items()}
                count = min(sums.rounds for sums in known.values())
                batch = DrafterEvidence(REQUESTS, al, rounds.ceiling)
                batches += [batch] * self._copies(count)
        return batches

    def _copies(self, rounds: int) -> int:
        """Return for how many batches so many rounds count; those beyond memory change nothing."""
        most = math.ceil(4 * self._policy.memory)
        return min(max(1, rounds // self._policy.batch_rounds), most)

    def _scores(self, cohort: str, names: Collection[str]) -> dict[str, tuple[float, int]]:
        """Return the latest scores of versions on a cohort, with their rounds."""
        since = self._tools.clock() - self._policy.days * self._calendar.day_seconds
        return {
            score.name: (score.al, score.rounds)
            for score in self._tools.store.scores()
            if score.cohort == cohort and score.name in names and score.time >= since
        }

    def _score(self) -> None:
        """Score the live versions on one busy cohort that lacks a score: a turn must not take
        long."""
        tools = self._tools
        names = sorted({*tools.store.live().values()})
        if tools.scorer is None or len(names) < 2:
            return
        now = tools.clock()
        for cohort in self._busy(names):
            missing = set(names) - self._scores(cohort, names).keys()
            since = now - tools.policy.corpus.days * self._calendar.day_seconds
            answers = tools.traces.answers(cohort, since, now)[-SCORED_ANSWERS:] if missing else []
            if len(answers) < tools.policy.corpus.least_answers:
                continue
            specs = {name: tools.store.spec(tools.store.version(name)) for name in names}
            try:
                scores = tools.scorer(specs, answers)
            except PacelineError:  # such as answers that a corpus knows already: requests tell
                continue
            for name, values in scores.items():
                tools.store.add_score(name, cohort, *values, SCORED_ON)
            return

    def _changing(self) -> frozenset[str]:
        return frozenset(change.cohort for change in self._tools.journal.active())

    def _keep(self, routed: Sequence[RoutedCohort]) -> None:
        rows: list[tuple[Any, ...]] = [
            (each.cohort, json.dumps(dict(each.shares)), each.source, each.why, each.time)
            for each in routed
        ]
        with self._tools.store.database.transaction() as connection:
            connection.execute("DELETE FROM routings")
            connection.executemany("INSERT INTO routings VALUES (?, ?, ?, ?, ?)", rows)
