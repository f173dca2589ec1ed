"""Scores beside an engine that serves the same texts: the same rounds for each kind of drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.autospec.scores.candidates import CandidateDrafters
from paceline.autospec.scores.replay import Replay, ReplayCosts
from paceline.autospec.scores.run import score
from paceline.core import Grammar, Round, SpeculationStats, SpeculativeParams, TokenKind
from paceline.drafters.corpus_folder import CorpusAnswer
from paceline.engine.costs import DraftCost
from paceline.models.loader import tokenizer_digest
from paceline.models.networks import sequence_features
from tests.drafters.corpora import make_corpus
from tests.engine.tiny import save_tiny
from tests.models.dflash.tiny import write_drafter
from tests.models.dflash.trained import train_tiny

PROMPTS = ["the quick brown fox", "one two three", "zebra", "a b c d e f g", "lorem ipsum dolor"]
OTHERS = ["a quick brown fox", "one two four", "zebras", "the quick lorem", "dolor ipsum a b c"]
FIXED = {"dtype": "float32", "backend": "torch", "threads": 1}
TOKENS = 60
RECORDS = Grammar("regex", r'(\{"name": "[a-z]{1,4}", "size": [0-9]{1,2}\}\n){9}')


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    return save_tiny(folder, blur=0.0, num_layers=5)


@pytest.fixture(scope="module")
def dflash(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"taps": (1, 2), "target_layers": 5, "block": 6}
    return train_tiny(tmp_path_factory.mktemp("d"), target, PROMPTS, steps=120, **options)


@pytest.fixture(scope="module")
def records_dflash(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that has learnt what the grammar makes of the target's answers."""
    options = {"taps": (1, 2), "target_layers": 5, "block": 6}
    folder = tmp_path_factory.mktemp("r")
    return train_tiny(folder, target, PROMPTS, steps=120, grammar=RECORDS, **options)


def answers_to(target: Path, prompts: Sequence[str], start: float = 0.0) -> list[CorpusAnswer]:
    llm = LLM(str(target), None, **FIXED)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    results = llm.generate(list(prompts), params)
    return [
        CorpusAnswer(start + number, "tiny|app|en|none", "", result.prompt_ids, result.token_ids)
        for number, result in enumerate(results, 1)
    ]


@pytest.fixture(scope="module")
def texts(target: Path) -> list[CorpusAnswer]:
    return answers_to(target, PROMPTS, start=1000.0)


@pytest.fixture(scope="module")
def corpus(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the target said to other prompts, earlier."""
    before = answers_to(target, OTHERS)
    root = tmp_path_factory.mktemp("corpus")
    return make_corpus(root, before, tokenizer=tokenizer_digest(target))


@pytest.fixture(scope="module")
def records(target: Path) -> list[CorpusAnswer]:
    """Answers that a grammar binds: half of each is forced, and traces say where."""
    llm = LLM(str(target), None, **FIXED)
    params = SamplingParams(temperature=0, max_tokens=4 * TOKENS, grammar=RECORDS)
    found = []
    for number, prompt in enumerate(PROMPTS, 1):
        (stream,) = llm.engine.make_requests(
            llm.tokenizer(prompt)["input_ids"], params, SpeculativeParams(), request_id=prompt
        )
        kinds = [kind for delta in llm.driver.run([stream]) for kind in delta.kinds]
        places = [place for place, kind in enumerate(kinds) if kind is TokenKind.FORCED]
        ids = stream.prompt_ids, stream.output_ids
        found.append(CorpusAnswer(number, "tiny|app|en|none", "", *ids, forced_places=places))
    return found


def served_rounds(
    target: Path,
    spec: str,
    texts: Sequence[CorpusAnswer],
    grammar: Grammar | None = None,
    **options,
) -> list[list[Round]]:
    """Return the rounds of an engine that answers the same prompts, without the prompts' own."""
    llm = LLM(str(target), spec, draft_policy="fixed", prefix_cache=False, **(FIXED | options))
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    if grammar is not None:
        params = SamplingParams(temperature=0, max_tokens=4 * TOKENS, grammar=grammar)
    found = []
    for number, text in enumerate(texts):
        requests = llm.engine.make_requests(
            list(text.prompt_ids), params, SpeculativeParams(), request_id=f"r{number}",
            share_answers=False, key=text.key,
        )  # fmt: skip
        deltas = list(llm.driver.run(requests))
        assert [t for delta in deltas for t in delta.token_ids] == list(text.output_ids)
        found.append([delta.round for delta in deltas if delta.round and delta.round.position])
    return found


def replayed_rounds(
    target: Path, spec: str, texts: Sequence[CorpusAnswer], **options
) -> list[list[Round]]:
    candidates = CandidateDrafters.load(str(target), [spec], **(FIXED | options))
    (drafter,) = candidates.drafters.values()
    layers = drafter.feature_layers
    replay = Replay(
        drafter,
        ReplayCosts(DraftCost(drafter.parallel)),
        (lambda ids: sequence_features(candidates.network, ids, layers)) if layers else None,
        candidates.blocks,
    )
    return [text.rounds for text in replay.run(texts)]


def shape(rounds: list[list[Round]]) -> list[list[tuple[object, ...]]]:
    return [[(r.position, r.drafted, r.accepted, r.part) for r in text] for text in rounds]


@pytest.mark.parametrize(
    "kind", ["ngram", "suffix", "suffix+corpus", "auto", "dflash", "hybrid", "hybrid+corpus"]
)
def test_rounds_are_those_of_the_engine(kind, target, dflash, corpus, texts):
    kind, plus, _ = kind.partition("+")
    spec = f"d={kind}" + (f":{dflash}" if kind in ("dflash", "hybrid") else "")
    spec += f",corpus={corpus}" if plus else ""
    served, replayed = (rounds(target, spec, texts) for rounds in (served_rounds, replayed_rounds))
    assert shape(replayed) == shape(served)
    stats = SpeculationStats.of(round for text in served for round in text)
    assert stats.accepted_tokens > 20, "hardly anything was accepted: nothing was compared"
    if kind == "hybrid":
        assert {"dflash", "suffix"} <= set(stats.parts), "one part alone drafted"


@pytest.mark.parametrize(
    "kind", [pytest.param("ngram", marks=pytest.mark.slow), "suffix", "dflash", "hybrid"]
)
def test_what_a_grammar_forced_is_no_merit_of_a_draft(kind, target, records_dflash, records):
    spec = f"d={kind}" + (f":{records_dflash}" if kind in ("dflash", "hybrid") else "")
    served = served_rounds(target, spec, records, RECORDS)
    replayed = replayed_rounds(target, spec, records)

    def stood(rounds: list[list[Round]]) -> list[list[tuple[object, ...]]]:
        """Drafts that leave the grammar are cut where it is known, so lengths are not compared."""
        return [
            [(r.position, r.accepted, r.bonus, r.forced, r.accepted and r.part) for r in text]
            for text in rounds
        ]

    assert stood(replayed) == stood(served)
    stats = SpeculationStats.of(round for text in served for round in text)
    assert stats.accepted_tokens > 20 and stats.forced_tokens > 100, "nothing was compared"
    blind = [replace(answer, forced_places=()) for answer in records]
    assert stood(replayed_rounds(target, spec, blind)) != stood(served), "a control that must fail"


@pytest.mark.slow
def test_a_second_generation_drafter_and_a_draft_model_too(target, texts, tmp_path):
    (tmp_path / "small").mkdir()
    blurred = save_tiny(tmp_path / "small", blur=0.01, num_layers=5)
    second = write_drafter(tmp_path / "d2", taps=(1, 2), target_layers=5, second=True)
    for spec in (f"draft_model:{blurred}", f"d=dflash:{second}"):
        served, replayed = (run(target, spec, texts) for run in (served_rounds, replayed_rounds))
        assert shape(replayed) == shape(served)
        assert SpeculationStats.of(r for text in served for r in text).draft_rounds > 100


def test_control_other_features_give_other_rounds(target, dflash, texts):
    """A replay that shows a drafter the wrong rows is found out."""
    served = served_rounds(target, f"d=dflash:{dflash}", texts)
    candidates = CandidateDrafters.load(str(target), [f"d=dflash:{dflash}"], **FIXED)
    drafter = candidates.drafters["d"]
    layers = tuple(layer + 1 for layer in drafter.feature_layers)
    replay = Replay(
        drafter,
        ReplayCosts(DraftCost()),
        lambda ids: sequence_features(candidates.network, ids, layers),
        candidates.blocks,
    )
    assert shape([text.rounds for text in replay.run(texts)]) != shape(served)


def test_texts_side_by_side_are_scored_as_alone(target, dflash, corpus, texts):
    spec = f"d=hybrid:{dflash},corpus={corpus}"
    together = shape(replayed_rounds(target, spec, texts))
    assert together == [shape(replayed_rounds(target, spec, [text]))[0] for text in texts]


def test_the_matrix_agrees_with_the_engine(target, dflash, corpus, texts):
    """AL of each candidate, of the matrix and of the engine, are the same number."""
    specs = ["none", "suffix", f"cor=suffix,corpus={corpus}", f"h=hybrid:{dflash},corpus={corpus}"]
    candidates = CandidateDrafters.load(str(target), specs, **FIXED)
    matrix = score(candidates, texts)
    assert matrix.texts == len(texts) and matrix.left_out == {}
    for name, spec in (("suffix", specs[1]), ("cor", specs[2]), ("h", specs[3])):
        served = SpeculationStats.of(r for t in served_rounds(target, spec, texts) for r in t)
        cell = matrix.cell(name)
        assert cell.al.value == pytest.approx(served.acceptance_length)
        assert cell.tokens_per_round.value == pytest.approx(served.tokens_per_round)
        assert cell.al.low < cell.al.value < cell.al.high
        assert (cell.rounds, cell.draft_rounds) == (served.rounds, served.draft_rounds)
        assert matrix.cell(name, "tiny|app|en|none").al == cell.al
    assert matrix.cell("none").tokens_per_round.value == 1.0 and matrix.cell("none").al is None
