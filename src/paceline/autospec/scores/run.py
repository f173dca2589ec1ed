"""Scores candidates on texts: the drafters and the target's features, and the matrix of it all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from paceline.autospec.scores.matrix import (
    ALL,
    NONE,
    PartScore,
    ScoreCell,
    ScoreCosts,
    ScoreMatrix,
    ratio_estimate,
)
from paceline.autospec.scores.replay import Replay, ReplayCosts, ReplayedText
from paceline.autospec.scores.worth import RoundSeconds, best_bound
from paceline.core import InvalidRequest, SpeculationStats
from paceline.core.names import local_path
from paceline.drafters.base import Drafter, longest_proposed
from paceline.drafters.corpus_folder import (
    LEAD,
    CorpusAnswer,
    read_corpus_answers,
    read_corpus_manifest,
)
from paceline.drafters.kinds import BuildContext
from paceline.drafters.spec import BASELINES, make_drafters, parse_spec
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.costs import Costs, DraftCost
from paceline.engine.machine import cpu_name
from paceline.models.batch import Network
from paceline.models.loader import load_model
from paceline.models.networks import sequence_features

TOGETHER = 16  # texts that are replayed side by side
FEATURE_TOKENS = 8192  # of these texts: their features are held in memory
Progress = Callable[[int], None]


@dataclass(slots=True)
class Candidates:
    """Drafters that are scored. Those that need more than texts have the target's network, with KV
    for `blocks` blocks; `costs` is the engine's table, where one was loaded."""

    model: str
    specs: dict[str, str]
    drafters: dict[str, Drafter]
    vocabulary: int
    longest_text: int
    network: Network | None = None
    blocks: int = 0
    costs: Costs | None = None

    @classmethod
    def load(
        cls, model: str, specs: Sequence[str], *, with_costs: bool = True, **options: Any
    ) -> Candidates:
        """Load drafters by their specs, NONE among them. The target is loaded where a drafter needs
        it, and for its cost table, unless `with_costs` is false. `options` are EngineConfig's.

        Raises InvalidRequest or ModelError.
        """
        wanted = [spec for spec in specs if spec != NONE]
        parsed = [parse_spec(spec) for spec in wanted]
        named = {spec.name: text for spec, text in zip(parsed, wanted, strict=True)}
        named |= {NONE: NONE} if NONE in specs else {}
        if not with_costs and all(spec.kind in BASELINES for spec in parsed):
            loaded = load_model(model)
            drafters = make_drafters(wanted, BuildContext(target=loaded))
            size = loaded.config.vocab_size
            return cls(loaded.name, named, drafters, size, loaded.max_context)
        fixed = {"draft_policy": "fixed", "prefix_cache": False, "max_num_seqs": TOGETHER}
        drafter = tuple(wanted) or None
        engine = build_engine(EngineConfig(model=model, drafter=drafter, **(fixed | options)))
        return cls(
            engine.model_name,
            named,
            dict(engine.drafters),
            engine.vocab_size,
            engine.max_model_len,
            engine.runner.network,
            engine.plan.num_blocks,
            engine.drafting.costs,
        )

    @property
    def layers(self) -> list[int]:
        """The target's layers that some drafter taps."""
        return sorted({layer for d in self.drafters.values() for layer in d.feature_layers})


@dataclass(slots=True)
class Scored:
    """One drafter's replayed texts."""

    replay: Replay
    costs: ReplayCosts
    texts: list[ReplayedText] = field(default_factory=list)


def score(
    candidates: Candidates,
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
    texts = list(_scorable(candidates, answers, counts))
    if not texts:
        reasons = ", ".join(f"{name} {count}" for name, count in counts.items()) or "there is none"
        raise InvalidRequest("answers", 0, f"a text that can be scored ({reasons})")
    features = _GroupFeatures(candidates)
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
        matrix.cells += _plain_cells(texts, priced=candidates.costs is not None)
    for name, each in scored.items():
        matrix.cells += _cells(candidates, name, each, requests)
    return matrix


class _GroupFeatures:
    """The target's features of a group's texts, computed once for all drafters."""

    def __init__(self, candidates: Candidates) -> None:
        self.texts: dict[tuple[int, ...], torch.Tensor] = {}
        self._network, self._layers = candidates.network, candidates.layers

    @torch.inference_mode()
    def of(self, text: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
        """Return a text's outputs of `layers`, side by side: [tokens, layers * hidden]."""
        network, key = self._network, tuple(text)
        assert network is not None, "who taps layers has the network"
        if key not in self.texts:
            self.texts[key] = sequence_features(network, text, self._layers)
        whole = self.texts[key].view(len(text), len(self._layers), network.hidden_size)
        return whole[:, [self._layers.index(layer) for layer in layers]].flatten(1)


def _scored(
    candidates: Candidates, drafter: Drafter, features: _GroupFeatures, shares_answers: bool
) -> Scored:
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
    return Scored(replay, costs)


def _scorable(
    candidates: Candidates, answers: Iterable[CorpusAnswer], counts: Counter[str]
) -> Iterator[CorpusAnswer]:
    """Yield the answers that every candidate can be scored on, the oldest first."""
    newest, known = _known_to_corpora(candidates.specs)
    for answer in sorted(answers, key=lambda answer: answer.time):
        size = len(answer.prompt_ids) + len(answer.output_ids)
        if len(answer.output_ids) < 2:
            counts["too_short"] += 1
        elif size > candidates.longest_text:
            counts["too_long"] += 1
        elif 0 < answer.time <= newest or (not answer.time and _content(answer) in known):
            counts["in_a_corpus"] += 1
        else:
            _check_ids(answer, candidates.vocabulary)
            yield answer


def _known_to_corpora(specs: Mapping[str, str]) -> tuple[float, set[tuple[object, ...]]]:
    """Return when the newest answer in a candidate's corpus was given, and the content of all."""
    newest, known = 0.0, set[tuple[object, ...]]()
    for text in specs.values():
        if text == NONE or (value := dict(parse_spec(text).options).get("corpus")) is None:
            continue
        folder = local_path(value, "corpus")
        newest = max(newest, read_corpus_manifest(folder, "corpus").newest)
        known.update(map(_content, read_corpus_answers(folder, "corpus")))
    return newest, known


def _content(answer: CorpusAnswer) -> tuple[object, ...]:
    return tuple(answer.prompt_ids[-LEAD:]), tuple(answer.output_ids)


def _check_ids(answer: CorpusAnswer, vocabulary: int) -> None:
    largest = max(max(answer.prompt_ids), max(answer.output_ids))
    if largest >= vocabulary:
        expected = f"token ids below {vocabulary}, this model's vocabulary"
        raise InvalidRequest("answers", largest, expected)


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


def _cells(candidates: Candidates, name: str, scored: Scored, requests: int) -> Iterator[ScoreCell]:
    by_cohort: dict[str, list[ReplayedText]] = defaultdict(list)
    for text in scored.texts:
        by_cohort[text.cohort].append(text)
    for cohort, texts in [(ALL, scored.texts), *sorted(by_cohort.items())]:
        yield _cell(candidates, name, cohort, texts, scored.costs, requests)


def _cell(
    candidates: Candidates,
    name: str,
    cohort: str,
    texts: Sequence[ReplayedText],
    costs: ReplayCosts,
    requests: int,
) -> ScoreCell:
    each = [SpeculationStats.of(text.rounds) for text in texts]
    total = SpeculationStats.of(round for text in texts for round in text.rounds)
    drafted = [stats.draft_rounds for stats in each]
    pooled = ratio_estimate([s.rounds + s.accepted_tokens for s in each], [s.rounds for s in each])
    cell = ScoreCell(
        drafter=name,
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
    if candidates.costs is not None and pooled is not None:
        drafter = candidates.drafters[name]
        seconds = RoundSeconds(candidates.costs.step, costs, requests, longest_proposed(drafter))
        asked = sum(text.asked for text in texts)
        bounds = range(1, drafter.max_draft_len + 1)
        speed, cell.draft_length = best_bound(seconds, total, asked, bounds)
        cell.speedup = pooled.scaled(speed / pooled.value)
    return cell


def _plain_cells(texts: Sequence[CorpusAnswer], *, priced: bool) -> Iterator[ScoreCell]:
    """Yield the cells of the candidate that never drafts."""
    ordered = sorted(texts, key=lambda text: text.cohort)
    groups = {cohort: list(group) for cohort, group in groupby(ordered, lambda t: t.cohort)}
    for cohort, group in {ALL: ordered, **groups}.items():
        rounds = [float(len(text.output_ids) - 1) for text in group]
        plain = ratio_estimate(rounds, rounds)
        yield ScoreCell(
            drafter=NONE,
            cohort=cohort,
            requests=len(group),
            rounds=int(sum(rounds)),
            draft_rounds=0,
            al=None,
            tokens_per_round=plain,
            speedup=plain if priced else None,
            draft_length=0 if priced else None,
        )


def _described(candidates: Candidates, requests: int) -> ScoreCosts | None:
    if candidates.costs is None:
        return None
    seconds = candidates.costs.step(requests, requests)
    return ScoreCosts(requests=requests, step_seconds=seconds, machine=cpu_name())
