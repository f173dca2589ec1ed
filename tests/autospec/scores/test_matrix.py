"""The numbers of a matrix: intervals, cohorts, what acceptance is worth, what is left out."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from paceline.autospec.scores.candidates import CandidateDrafters
from paceline.autospec.scores.matrix import NONE, ScoreMatrix, ratio_estimate
from paceline.autospec.scores.replay import ReplayCosts
from paceline.autospec.scores.run import score
from paceline.autospec.scores.worth import RoundSeconds
from paceline.core import InvalidRequest, Round, SpeculationStats
from paceline.drafters.corpus_folder import CorpusAnswer
from paceline.engine.costs import DraftCost
from paceline.engine.step_cost import StepCost
from paceline.models.loader import tokenizer_digest
from tests.drafters.corpora import make_corpus
from tests.engine.tiny import save_tiny

DE, EN = "tiny|app|de|none", "tiny|app|en|none"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


def text(output, cohort: str = EN, time: float = 100.0, key: str = "") -> CorpusAnswer:
    return CorpusAnswer(time, cohort, key, [1, 2, 3], list(output))


def look_ups(model: Path, *specs: str) -> CandidateDrafters:
    return CandidateDrafters.load(str(model), specs, with_costs=False)


# -- intervals -------------------------------------------------------------------------------------


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Requests of different lengths whose rounds hang together: the request is the unit."""
    rng = np.random.default_rng(0)
    truth, covered, naive = 2.4, 0, 0
    for _ in range(800):
        rounds = rng.integers(5, 60, 40)
        rates = rng.gamma(4.0, (truth - 1) / 4.0, 40)  # each request has a rate of its own
        tokens = rounds + rng.poisson(rates * rounds)
        estimate = ratio_estimate(tokens, rounds)
        covered += estimate.low <= truth <= estimate.high
        error = np.sqrt((truth - 1) / rounds.sum())  # as if rounds were independent
        naive += abs(estimate.value - truth) < 1.96 * error
    assert 0.90 < covered / 800 < 0.97
    assert naive / 800 < 0.6, "the control: an interval over rounds is far too narrow"


def test_a_single_request_has_no_interval_and_none_no_value():
    assert ratio_estimate([6], [3]).model_dump() == {
        "value": 2.0, "error": None, "low": None, "high": None,
    }  # fmt: skip
    assert ratio_estimate([0, 0], [0, 0]) is None
    assert ratio_estimate([6, 0], [3, 0]).error is None, "one of the two never drafted"


# -- worth -----------------------------------------------------------------------------------------


def stats_of(accepted: list[int], drafted: int = 4) -> SpeculationStats:
    return SpeculationStats.of(Round(place, drafted, count) for place, count in enumerate(accepted))


def seconds(per_row: float = 0.0, draft: float = 0.0, requests: int = 1) -> RoundSeconds:
    """A step of 10 ms and what each row adds; a draft of four tokens takes `draft`."""
    step = StepCost([1, 101], [0.01, 0.01 + 100 * per_row] if per_row else [0.01, 0.01])
    price = DraftCost(parallel=True)
    price.add_proposal([4], 4, draft)
    return RoundSeconds(step, ReplayCosts(price), requests, 4, 4)


def test_free_drafts_are_worth_what_they_bring():
    speed, bound = seconds().best(stats_of([4, 2, 0, 1]), asked=4)
    assert (speed, bound) == (pytest.approx(1 + 7 / 4), 4)


def test_the_best_bound_leaves_out_what_does_not_pay():
    """The first token stands always, the others never."""
    speed, bound = seconds(per_row=0.001).best(stats_of([1] * 9), asked=9)
    assert (speed, bound) == (pytest.approx(2 * 0.010 / 0.011), 1)


def test_drafts_that_cost_more_than_they_bring_are_worth_no_draft():
    assert seconds(draft=0.02).best(stats_of([1, 0, 0, 0]), asked=4) == (1.0, 0)
    assert seconds(per_row=0.01).best(stats_of([1, 0, 0, 0]), asked=4) == (1.0, 0)
    assert seconds().best(SpeculationStats(), asked=0) == (1.0, 0)


def test_rounds_that_did_not_ask_pay_for_no_draft():
    """A hybrid whose look-ups draft half of the rounds runs its network in the others alone."""
    all_asked, half = (seconds(draft=0.01).speedup(stats_of([4] * 8), asked, 4) for asked in (8, 4))
    assert (all_asked, half) == (pytest.approx(5 / 2), pytest.approx(5 / 1.5))


def test_more_requests_at_once_make_rows_dearer():
    alone, many = (
        seconds(per_row=0.0005, requests=count).best(stats_of([3, 1, 0, 2]), asked=4)
        for count in (1, 16)
    )
    assert alone[0] > many[0] and alone[1] >= many[1]


# -- the matrix ------------------------------------------------------------------------------------


def test_cohorts_have_cells_of_their_own_and_all_of_them_one(model):
    repeating, new = [5, 6, 7, 8] * 10, random.Random(0).sample(range(10, 250), 40)
    texts = [text(repeating, DE), text(repeating, DE), text(new, EN)]
    matrix = score(look_ups(model, "none", "suffix", "ngram"), texts)
    assert matrix.cohorts == [DE, EN]
    assert {(c.drafter, c.cohort) for c in matrix.cells} == {
        (name, cohort) for name in ("none", "suffix", "ngram") for cohort in ("", DE, EN)
    }
    german, english, both = (matrix.cell("suffix", cohort) for cohort in (DE, EN, ""))
    assert german.tokens_per_round.value > 4 and english.tokens_per_round.value == 1.0
    assert english.al is None and english.draft_rounds == 0
    assert both.rounds == german.rounds + english.rounds and both.al == german.al
    share = german.positions[0]  # nothing repeats itself in four of a text's seven rounds
    assert share == pytest.approx(3 / 7) and len(german.positions) <= 15
    plain = matrix.cell(NONE, DE)
    assert (plain.requests, plain.rounds, plain.tokens_per_round.value) == (2, 78, 1.0)
    assert matrix.costs is None and german.speedup is None, "no table of costs was asked for"
    assert matrix.tokens == 120 and ScoreMatrix.model_validate(matrix.model_dump()) == matrix


def test_no_text_is_scored_with_itself(model, tmp_path):
    """A text that the corpus holds is left out for every candidate, by its time or its content."""
    digest, rng = tokenizer_digest(model), random.Random(1)
    old, new, untimed = ([rng.randrange(256) for _ in range(30)] for _ in range(3))
    known = [text(old, time=100.0), text(untimed, time=0.0)]
    folder = make_corpus(tmp_path, known, tokenizer=digest)
    candidates = look_ups(model, "suffix", f"cor=suffix,corpus={folder}")
    texts = [text(old, time=100.0), text(old, time=101.0), text(new, time=99.0),
             text(untimed, time=0.0), text(new, time=0.0)]  # fmt: skip
    matrix = score(candidates, texts)
    assert matrix.left_out == {"in_a_corpus": 3} and matrix.texts == 2
    assert matrix.cell("cor").requests == matrix.cell("suffix").requests == 2
    assert matrix.cell("cor").al.value > 3, "the same answer came again later: that counts"
    assert matrix.cell("suffix").tokens_per_round.value < 1.5
    with pytest.raises(InvalidRequest, match=r"a text that can be scored \(in_a_corpus 1\)"):
        score(candidates, texts[:1])


def test_answers_are_remembered_in_the_order_of_time_where_that_is_asked_for(model, monkeypatch):
    monkeypatch.setattr("paceline.autospec.scores.run.TOGETHER", 1)
    output = random.Random(2).sample(range(256), 60)
    texts = [text(output, time=2.0, key="a"), text(output, time=1.0, key="a")]
    other = text(output, time=3.0, key="b")
    alone, shared = (
        score(look_ups(model, "suffix"), [*texts, other], shares_answers=shares)
        for shares in (False, True)
    )
    assert alone.cell("suffix").draft_rounds == 0
    cell = shared.cell("suffix")
    assert 0 < cell.draft_rounds < 20, "one of three could draft from an answer of its own key"
    assert shared.shares_answers and not alone.shares_answers


def test_what_cannot_be_scored_is_counted_or_refused(model):
    texts = [text([5, 6, 7]), text([5]), text(range(5, 250), time=1.0)]
    texts[2].output_ids.extend([9] * 2000)
    assert score(look_ups(model, "suffix"), texts).left_out == {"too_long": 1, "too_short": 1}
    with pytest.raises(InvalidRequest, match=r"got 256; expected token ids below 256"):
        score(look_ups(model, "suffix"), [text([5, 256])])
    with pytest.raises(InvalidRequest, match="there is none"):
        score(look_ups(model, "suffix"), [])
    with pytest.raises(InvalidRequest, match="a name of its own for each drafter"):
        look_ups(model, "suffix", "suffix")


def test_speed_comes_from_the_engines_table(model):
    options = {"dtype": "float32", "backend": "torch", "threads": 1}
    texts = [text([5, 6, 7, 8] * 10, time=time) for time in (1.0, 2.0, 3.0)]
    candidates = CandidateDrafters.load(str(model), ["none", "suffix"], **options)
    matrix = score(candidates, texts, requests=2)
    assert matrix.costs.requests == 2
    assert matrix.costs.step_seconds == candidates.costs.step(2, 2)
    assert matrix.cell(NONE).speedup.value == 1.0 and matrix.cell(NONE).draft_length == 0
    cell = matrix.cell("suffix")
    assert 1.0 <= cell.speedup.value <= cell.tokens_per_round.value
    assert cell.speedup.low <= cell.speedup.value <= cell.speedup.high
