"""Building a corpus: what is taken, what is kept, and that it comes out the same."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from paceline.autospec.answers import read_all_answers, read_answers
from paceline.autospec.corpus import CorpusPlan, build_corpus, merge_corpora
from paceline.core import InvalidRequest
from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.drafters.corpus_folder import (
    CorpusAnswer,
    corpus_versions,
    read_corpus_answers,
    read_corpus_manifest,
)
from tests.drafters.corpora import DAY, an_answer

TARGET = {"name": "tiny", "tokenizer_sha256": "f" * 64}
NOW = 1_800_000_000.0


def different(count: int, **fields) -> list[CorpusAnswer]:
    """Answers of ten tokens that have none in common."""
    return [
        an_answer(range(10 * number, 10 * number + 10), time=NOW - count + number, **fields)
        for number in range(count)
    ]


def built(root: Path, answers, now: float = NOW, **plan) -> list[CorpusAnswer]:
    folder = build_corpus(root, answers, TARGET, CorpusPlan(**plan), now=now)
    return list(read_corpus_answers(folder, "corpus"))


def outputs(answers) -> list[list[int]]:
    return [list(answer.output_ids) for answer in answers]


def test_answers_come_oldest_first_whatever_their_order(tmp_path):
    answers = different(6)
    shuffled = random.Random(1).sample(answers, 6)
    assert outputs(built(tmp_path / "a", answers)) == outputs(answers)
    assert outputs(built(tmp_path / "b", shuffled)) == outputs(answers)
    one, two = (tmp_path / name / "v1" for name in "ab")
    assert {p.name: p.read_bytes() for p in one.iterdir()} == {
        p.name: p.read_bytes() for p in two.iterdir()
    }, "a build of the same answers at the same time gives the same bytes"


def test_a_scope_takes_the_answers_of_one_key_and_no_others(tmp_path):
    mine, theirs = different(2, key="shop"), different(4, key="bank")[2:]
    assert outputs(built(tmp_path, [*mine, *theirs], scope="shop")) == outputs(mine)
    manifest = read_corpus_manifest(tmp_path / "v1", "corpus")
    assert (manifest.scope, manifest.counts) == ("shop", {"other_key": 2, "read": 4})
    with pytest.raises(InvalidRequest, match=r"at least one that may be kept \(read 4, other_key"):
        built(tmp_path, [*mine, *theirs], scope="nobody")


def test_cohorts_are_chosen_by_label(tmp_path):
    german, english = different(2, cohort="m|a|de|eu"), different(4, cohort="m|a|en|eu")[2:]
    assert outputs(built(tmp_path, [*german, *english], cohorts=("m|a|de|eu",))) == outputs(german)
    assert set(read_corpus_manifest(tmp_path / "v1", "corpus").cohorts) == {"m|a|de|eu"}


def test_no_answer_outlives_the_time_it_must_be_forgotten_at(tmp_path):
    soon, later, never = different(3)
    answers = [
        an_answer(soon.output_ids, expires=NOW + DAY - 1),
        an_answer(later.output_ids, expires=NOW + DAY),
        an_answer(never.output_ids),
    ]
    kept = built(tmp_path, answers, days=1)
    assert outputs(kept) == outputs([later, never])
    manifest = read_corpus_manifest(tmp_path / "v1", "corpus")
    assert manifest.expires == NOW + DAY and manifest.counts["expiring"] == 1


def test_a_build_deletes_the_versions_that_have_expired(tmp_path):
    built(tmp_path, different(1), days=1)
    built(tmp_path, different(1), now=NOW + DAY / 2, days=1)
    built(tmp_path, different(1), now=NOW + DAY, days=1)
    assert [path.name for path in corpus_versions(tmp_path)] == ["v2", "v3"]


def test_answers_that_are_nearly_the_same_are_one_that_counts_as_often(tmp_path):
    rng = random.Random(0)
    text = [rng.randrange(1000) for _ in range(100)]
    near, far = list(text), list(text)
    near[99] = 1001
    far[40:60] = range(2000, 2020)
    answers = [
        an_answer(output, time=NOW - 10 + place)
        for place, output in enumerate([text, far, text, near])
    ]
    kept = built(tmp_path, answers)
    assert [(list(answer.output_ids), answer.repeats) for answer in kept] == [(far, 1), (near, 3)]
    assert kept[1].time == NOW - 7, "the newest stands for the others"


def test_short_answers_are_alike_only_if_they_are_the_same(tmp_path):
    answers = [an_answer(ids) for ids in ([1, 2], [1, 2], [1, 3], [1], [1, 2, 3])]
    kept = built(tmp_path, answers)
    assert sorted((a.output_ids, a.repeats) for a in kept) == [
        ([1], 1),
        ([1, 2], 2),
        ([1, 2, 3], 1),
        ([1, 3], 1),
    ]


def test_the_newest_and_the_most_repeated_fit_into_the_bound(tmp_path):
    answers = different(6)
    answers = [
        an_answer(a.output_ids, prompt=[1, 2], time=NOW - 6 * DAY + place * DAY)
        for place, a in enumerate(answers)
    ]
    answers += [answers[0]] * 15  # sixteen times: as good as one that is four days newer
    kept = built(tmp_path, answers, most_tokens=3 * 13)
    assert outputs(kept) == outputs([answers[0], answers[4], answers[5]])
    assert read_corpus_manifest(tmp_path / "v1", "corpus").counts["beyond_bound"] == 3


def test_empty_answers_are_left_out(tmp_path):
    assert len(built(tmp_path, [an_answer([]), *different(2)])) == 2


# -- replicas --------------------------------------------------------------------------------------


def test_replicas_merge_and_merging_again_counts_nothing_twice(tmp_path):
    common, *rest = different(5)
    one = build_corpus(tmp_path / "1", [common, common, *rest[:2]], TARGET, now=NOW)
    two = build_corpus(tmp_path / "2", [common, *rest[2:]], TARGET, now=NOW + 5)
    merged = merge_corpora(tmp_path / "m", [one, two], now=NOW + 10)
    answers = list(read_corpus_answers(merged, "corpus"))
    assert outputs(answers) == outputs([common, *rest])
    assert [answer.repeats for answer in answers] == [2, 1, 1, 1, 1]
    again = merge_corpora(tmp_path / "m", [merged, one, two], now=NOW + 20)
    assert again.name == "v2"
    manifest = read_corpus_manifest(again, "corpus")
    assert manifest.digest == read_corpus_manifest(merged, "corpus").digest
    assert manifest.expires == min(
        read_corpus_manifest(folder, "corpus").expires for folder in (one, two)
    )


def test_corpora_of_different_scopes_or_tokenizers_do_not_merge(tmp_path):
    one = build_corpus(tmp_path / "1", different(1, key="a"), TARGET, CorpusPlan(scope="a"))
    two = build_corpus(tmp_path / "2", different(1, key="b"), TARGET, CorpusPlan(scope="b"))
    other = TARGET | {"tokenizer_sha256": "0" * 64}
    three = build_corpus(tmp_path / "3", different(1, key="a"), other, CorpusPlan(scope="a"))
    for folders, part in (([one, two], "scope"), ([one, three], "tokenizer")):
        with pytest.raises(InvalidRequest, match=f"a corpus with the {part} of"):
            merge_corpora(tmp_path / "m", folders)
    assert not (tmp_path / "m").exists()


# -- sources ---------------------------------------------------------------------------------------


def test_a_file_of_token_ids(tmp_path):
    path = tmp_path / "answers.jsonl"
    lines = [
        {"prompt_ids": [1], "output_ids": [2, 3]},
        {"prompt_ids": [1], "output_ids": [4], "time": 5.0, "cohort": "m|a|de|eu", "key": "shop",
         "expires": 9.0, "forced_places": [0]},
    ]  # fmt: skip
    path.write_text("\n\n".join(map(json.dumps, lines)))
    first, second = read_answers(str(path), "tiny")
    assert (first.output_ids, first.cohort, first.time) == ([2, 3], "tiny|none|und|none", 0.0)
    assert second == CorpusAnswer(5.0, "m|a|de|eu", "shop", [1], [4], 9.0, forced_places=[0])
    both = read_all_answers([str(path), str(path)], "tiny")
    assert len(list(both)) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt_ids": [1]}', r"answers.jsonl:1.output_ids: missing"),
        ('{"prompt_ids": [], "output_ids": [1]}', r"prompt_ids: got \[\]; expected .* not empty"),
        (
            '{"prompt_ids": [1], "output_ids": [-1]}',
            r"output_ids\[0\]: got -1; expected at least 0",
        ),
        ('{"prompt_ids": [1], "output_ids": [1], "text": "a"}', "text: unknown field"),
        ('{"prompt_ids": [1], "output_ids": [1], "cohort": "a"}', "cohort: got 'a'; expected mod"),
        (
            '{"prompt_ids": [1], "output_ids": [1, 2], "forced_places": [1, 2]}',
            r"answers.jsonl:1.forced_places: got 2; expected places in output_ids, below 2",
        ),
        ("no JSON", r"answers.jsonl:1'; expected a line of JSON"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path, line, message):
    path = tmp_path / "answers.jsonl"
    path.write_text(line)
    with pytest.raises(InvalidRequest, match=message):
        list(read_answers(str(path), "tiny"))


def test_a_training_set_gives_the_answers_of_a_split(tmp_path):
    def row(ids, spans, part, source, language="de"):
        return TrainingRow(
            tuple(ids), spans, f"{source}#1", part, language, "stop", 0.0, 0, str(ids)
        )

    rows = [
        row(range(10), ((4, 6), (8, 10)), "on_task", "phrases"),
        row(range(20, 26), ((2, 6),), "replay", "general", "en"),
    ]
    shards = [write_shard(tmp_path, "train", 0, rows)]
    app = {"description": {"name": "support"}}
    write_manifest(tmp_path, Manifest(target={"name": "smollm2"}, app=app, shards=shards))
    answers = list(read_answers(str(tmp_path), "x"))
    assert [(list(a.prompt_ids), list(a.output_ids)) for a in answers] == [
        ([0, 1, 2, 3], [4, 5]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [8, 9]),
        ([20, 21], [22, 23, 24, 25]),
    ]
    assert [answer.cohort for answer in answers] == [
        "smollm2|support|de|none",
        "smollm2|support|de|none",
        "smollm2|general|en|none",
    ]
    assert list(read_answers(f"{tmp_path}:held_out", "x")) == []


def test_sources_that_are_not_there_are_refused(tmp_path):
    for source, message in (
        (str(tmp_path / "nothing"), "of `paceline synth`, or a JSONL file"),
        (str(tmp_path), "a folder of `paceline serve --traces` or of `paceline synth`"),
    ):
        with pytest.raises(InvalidRequest, match=message) as caught:
            list(read_answers(source, "x"))
        assert caught.value.field == "answers"
