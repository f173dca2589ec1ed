"""The cells of a matrix, out of replayed texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from paceline.autospec.scores.matrix import ALL, NONE, PartScore, ScoreCell, ratio_estimate
from paceline.autospec.scores.replay import ReplayedText
from paceline.autospec.scores.worth import RoundSeconds
from paceline.core import SpeculationStats
from paceline.drafters.corpus_folder import CorpusAnswer


def cells_of(
    drafter: str, texts: Sequence[ReplayedText], seconds: RoundSeconds | None
) -> Iterator[ScoreCell]:
    """Yield a drafter's cells: over all texts, then by cohort. `seconds` prices its rounds; None
    where nothing is known of that."""
    by_cohort: dict[str, list[ReplayedText]] = defaultdict(list)
    for text in texts:
        by_cohort[text.cohort].append(text)
    for cohort, among in [(ALL, texts), *sorted(by_cohort.items())]:
        yield _cell(drafter, cohort, among, seconds)


def _cell(
    drafter: str, cohort: str, texts: Sequence[ReplayedText], seconds: RoundSeconds | None
) -> ScoreCell:
    each = [SpeculationStats.of(text.rounds) for text in texts]
    total = SpeculationStats.of(round for text in texts for round in text.rounds)
    drafted = [stats.draft_rounds for stats in each]
    pooled = ratio_estimate([s.rounds + s.accepted_tokens for s in each], [s.rounds for s in each])
    cell = ScoreCell(
        drafter=drafter,
        cohort=cohort,
        requests=len(texts),
        rounds=total.rounds,
        draft_rounds=total.draft_rounds,
        al=ratio_estimate([s.draft_rounds + s.accepted_tokens for s in each], drafted),
        tokens_per_round=pooled,
        positions=[accepted / max(1, total.rounds) for _, accepted in total.by_position()],
        parts={
            part: PartScore(rounds=stats.draft_rounds, al=stats.acceptance_length or 1.0)
            for part, stats in total.parts.items()
        },
    )
    if seconds is not None and pooled is not None:
        asked = sum(text.asked for text in texts)
        speed, cell.draft_length = seconds.best(total, asked)
        cell.speedup = pooled.scaled(speed / pooled.value)
    return cell


def plain_cells(texts: Sequence[CorpusAnswer], *, priced: bool) -> Iterator[ScoreCell]:
    """Yield the cells of the candidate that never drafts: a token a round, at the plain speed."""
    by_cohort: dict[str, list[CorpusAnswer]] = defaultdict(list)
    for text in texts:
        by_cohort[text.cohort].append(text)
    for cohort, among in [(ALL, texts), *sorted(by_cohort.items())]:
        rounds = [len(text.chosen_places) for text in among]
        plain = ratio_estimate(rounds, rounds)
        yield ScoreCell(
            drafter=NONE,
            cohort=cohort,
            requests=len(among),
            rounds=sum(rounds),
            draft_rounds=0,
            al=None,
            tokens_per_round=plain,
            speedup=plain if priced else None,
            draft_length=0 if priced else None,
        )
