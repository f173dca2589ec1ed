"""Score candidates on texts: replay every text with every drafter, and write the matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from paceline.autospec.scores.candidates import TOGETHER, CandidateDrafters, GroupFeatures, scorable
from paceline.autospec.scores.cells import cells_of, plain_cells
from paceline.autospec.scores.matrix import NONE, ScoreCosts, ScoreMatrix
from paceline.autospec.scores.replay import Replay, ReplayCosts, ReplayedText
from paceline.autospec.scores.worth import RoundSeconds
from paceline.core import InvalidRequest
from paceline.drafters.base import Drafter, longest_proposed
from paceline.drafters.corpus_folder import CorpusAnswer
from paceline.engine.costs import DraftCost
from paceline.engine.machine import cpu_name

FEATURE_TOKENS = 8192  # of these texts: their features are held in memory
Progress = Callable[[int], None]


@dataclass(slots=True)
class _Scored:
    """A drafter, and the texts that it has replayed."""

    drafter: Drafter
    costs: ReplayCosts
    replay: Replay
    texts: list[ReplayedText] = field(default_factory=list)


def score(
    candidates: CandidateDrafters,
    answers: Iterable[CorpusAnswer],
    *,
    requests: int = 1,
    shares_answers: bool = False,
    progress: Progress = lambda texts: None,
) -> ScoreMatrix:
    """Score candidates on answers, in the order of time; speed is that of `requests` at once.

    A text that stands in a candidate's corpus, or is not newer than it, is left out for all: no
    text is scored with itself. Raises InvalidRequest where no text is left.
    """
    counts = Counter[str]()
    texts = list(scorable(candidates, answers, counts))
    if not texts:
        reasons = ", ".join(f"{name} {count}" for name, count in counts.items()) or "there is none"
        raise InvalidRequest("answers", 0, f"a text that can be scored ({reasons})")
    features = GroupFeatures(candidates)
    scored = {
        name: _scored(candidates, drafter, features, shares_answers)
        for name, drafter in candidates.drafters.items()
    }
    replays = [each.replay for each in scored.values()]
    for group in _groups(texts, replays, candidates.blocks):
        features.texts.clear()
        for each in scored.values():
            each.texts += each.replay.run(group)
        progress(len(group))
    matrix = ScoreMatrix(
        model=candidates.model,
        drafters=candidates.specs,
        texts=len(texts),
        tokens=sum(len(text.output_ids) for text in texts),
        shares_answers=shares_answers,
        left_out={name: count for name, count in sorted(counts.items()) if count},
        costs=_described(candidates, requests),
    )
    if NONE in candidates.specs:
        matrix.cells += plain_cells(texts, priced=candidates.costs is not None)
    for name, each in scored.items():
        matrix.cells += cells_of(name, each.texts, _seconds(candidates, each, requests))
    return matrix


def _scored(
    candidates: CandidateDrafters, drafter: Drafter, features: GroupFeatures, shares_answers: bool
) -> _Scored:
    price = DraftCost(drafter.parallel)
    if candidates.costs is not None:
        price = candidates.costs.of(drafter.name)
    costs = ReplayCosts(price)
    layers = drafter.feature_layers
    replay = Replay(
        drafter,
        costs,
        (lambda text: features.of(text, layers)) if layers else None,
        candidates.blocks,
        shares_answers=shares_answers,
    )
    return _Scored(drafter, costs, replay)


def _groups(
    texts: Sequence[CorpusAnswer], replays: Sequence[Replay], blocks: int
) -> Iterator[list[CorpusAnswer]]:
    """Yield the texts in groups that fit into memory together."""
    group: list[CorpusAnswer] = []
    used = tokens = 0
    for text in texts:
        needed = max((replay.blocks_of(text) for replay in replays), default=0)
        size = len(text.prompt_ids) + len(text.output_ids)
        full = len(group) == TOGETHER or used + needed > blocks or tokens + size > FEATURE_TOKENS
        if group and full:
            yield group
            group, used, tokens = [], 0, 0
        group.append(text)
        used, tokens = used + needed, tokens + size
    if group:
        yield group


def _seconds(candidates: CandidateDrafters, scored: _Scored, requests: int) -> RoundSeconds | None:
    if candidates.costs is None:
        return None
    drafter = scored.drafter
    longest = drafter.max_draft_len, longest_proposed(drafter)
    return RoundSeconds(candidates.costs.step, scored.costs, requests, *longest)


def _described(candidates: CandidateDrafters, requests: int) -> ScoreCosts | None:
    if candidates.costs is None:
        return None
    seconds = candidates.costs.step(requests, requests)
    return ScoreCosts(requests=requests, step_seconds=seconds, machine=cpu_name())
