"""A corpus: what a version holds, who may draft from it, and what is refused."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from paceline.core import FinishReason, InvalidRequest
from paceline.drafters import corpus as corpus_module
from paceline.drafters.base import Reporting
from paceline.drafters.corpus import load_corpus
from paceline.drafters.corpus_folder import (
    LEAD,
    MANIFEST,
    corpus_versions,
    read_corpus_answers,
    read_corpus_manifest,
    remove_expired,
)
from paceline.drafters.kinds import BuildContext
from paceline.drafters.spec import build, parse_spec
from paceline.drafters.suffix import SuffixDrafter
from paceline.models.loader import load_model, tokenizer_digest
from tests.drafters.corpora import DAY, an_answer, make_corpus
from tests.engine.tiny import save_tiny
from tests.models.dflash.tiny import write_drafter

ANSWER = [10, 11, 12, 13, 14, 15]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_corpus(tmp_path / "app", [an_answer(ANSWER)])


def drafter_of(folder: Path, options: str = "") -> SuffixDrafter:
    built = build(parse_spec(f"suffix,corpus={folder}{options}"))
    assert isinstance(built, SuffixDrafter)
    return built


# -- drafting --------------------------------------------------------------------------------------


def test_a_first_request_drafts_from_the_corpus(folder, make_request, draft_once):
    drafter = drafter_of(folder)
    request = make_request([1, 2], answers_scope=None)
    drafter.begin([request], [0])
    assert draft_once(drafter, request, 4) == [10, 11, 12, 13]
    request.tokens += [10, 11]
    assert draft_once(drafter, request, 4) == [12, 13, 14, 15]


def test_all_requests_share_it_and_every_draft_from_it_says_so(folder, make_request):
    drafter = drafter_of(folder)
    requests = [
        make_request([1, 2], answers_scope=scope, key=key)
        for scope, key in ((None, "a"), (b"s", ""))
    ]
    own = make_request([7, 8, 9, 7, 8])
    drafter.begin([*requests, own], [0, 0, 0])
    batch = drafter.propose([*requests, own], [4, 4, 4])
    assert batch.tokens[:2] == [[10, 11, 12, 13]] * 2 and batch.tokens[2]
    assert batch.from_others == [True, True, False]


@pytest.mark.parametrize("kind", ["suffix", "auto", "hybrid"])
def test_a_request_that_is_not_lossless_never_drafts_from_it(kind, folder, make_request, tmp_path):
    """A lossy rule may accept a draft token that is not the target's: that of another user."""
    value = f":{write_drafter(tmp_path / 'd')}" if kind == "hybrid" else ""
    drafter = build(parse_spec(f"{kind}{value},corpus={folder}"))
    looked_up = getattr(drafter, "lookup", drafter)
    lossy, lossless = (
        make_request([1, 2], answers_scope=None, lossless=is_lossless)
        for is_lossless in (False, True)
    )
    looked_up.begin([lossy, lossless], [0, 0])
    assert looked_up.propose([lossy, lossless], [4, 4]).tokens == [[], [10, 11, 12, 13]]


def test_a_corpus_of_one_key_serves_that_key_alone(tmp_path, make_request):
    folder = make_corpus(tmp_path, [an_answer(ANSWER, key="shop")], scope="shop")
    drafter = drafter_of(folder)
    requests = [make_request([1, 2], answers_scope=None, key=key) for key in ("shop", "bank", "")]
    drafter.begin(requests, [0, 0, 0])
    assert drafter.propose(requests, [4, 4, 4]).tokens == [[10, 11, 12, 13], [], []]


def test_nothing_is_drafted_from_a_corpus_once_it_has_expired(
    folder, make_request, draft_once, monkeypatch
):
    drafter, request = drafter_of(folder), make_request([1, 2])
    drafter.begin([request], [0])
    assert draft_once(drafter, request, 4)
    later = time.time() + 2 * DAY
    monkeypatch.setattr(corpus_module.time, "time", lambda: later)
    assert not draft_once(drafter, request, 4)


def test_the_best_of_three_sources_is_taken(tmp_path, make_request, draft_once):
    """Each source agrees with more of the text in turn."""
    folder = make_corpus(tmp_path, [an_answer([50, 51, 52, 60, 61], prompt=[9])])
    drafter = drafter_of(folder)
    before = make_request([1], [51, 52, 70, 71])
    drafter.begin([before], [0])
    before.finish_reason = FinishReason.STOP
    drafter.release([before])
    request = make_request([52, 80, 81, 3, 52])  # its own text agrees on one token
    drafter.begin([request], [0])
    assert draft_once(drafter, request, 2) == [80, 81]
    request.tokens += [51, 52]  # the earlier answer on two
    assert draft_once(drafter, request, 2) == [70, 71]
    request.tokens += [50, 51, 52]  # and the corpus on three
    assert draft_once(drafter, request, 2) == [60, 61]


def test_the_newest_of_equals_and_the_more_frequent_win(tmp_path, make_request, draft_once):
    old, new = an_answer([10, 20], time=1.0), an_answer([10, 21], time=2.0)
    for answers, expected in (
        ([old, new], 21),
        ([an_answer([10, 20], time=1.0, repeats=3), new], 20),
    ):
        drafter, request = drafter_of(make_corpus(tmp_path, answers)), make_request([1, 2], [10])
        drafter.begin([request], [0])
        assert draft_once(drafter, request, 1) == [expected]


def test_drafts_are_those_of_a_memory_that_holds_the_same_answers(tmp_path, make_request):
    rng = random.Random(0)
    answers = [
        an_answer([rng.randrange(30) for _ in range(40)], prompt=[rng.randrange(30)] * 3)
        for _ in range(10)
    ]
    drafter, memory = drafter_of(make_corpus(tmp_path, answers)), SuffixDrafter()
    for answer in answers:
        memory.cache.store(b"", answer.prompt_ids, answer.output_ids)
    asked = 0
    for answer in answers:
        for end in range(0, 40, 3):
            text = make_request([*answer.prompt_ids], [*answer.output_ids[:end]])
            for each in (drafter, memory):
                each.begin([text], [0])
            ours, theirs = (each.propose([text], [8]) for each in (drafter, memory))
            assert ours.tokens == theirs.tokens
            asked += len(ours.tokens[0])
    assert asked > 300


# -- the drafter -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["suffix", "auto"])
def test_version_memory_and_start_up_table_tell_of_the_corpus(kind, folder):
    plain, drafter = (build(parse_spec(f"{kind}{more}")) for more in ("", f",corpus={folder}"))
    digest = read_corpus_manifest(folder, "corpus").digest
    assert f"corpus-1-{digest[:8]}" in drafter.version and drafter.version != plain.version
    assert plain.weight_bytes == 0 < drafter.weight_bytes
    assert isinstance(drafter, Reporting)
    ((label, row),) = drafter.start_up_rows
    assert label.startswith("corpus") and "1 answers, 6 tokens" in row and "all requests" in row


def test_another_content_is_another_version(tmp_path):
    names = {
        read_corpus_manifest(make_corpus(tmp_path / place, [an_answer(output)]), "corpus").name
        for place, output in (("a", [1, 2]), ("b", [1, 2]), ("c", [1, 3]))
    }
    assert len(names) == 2, "the same content has the same name wherever it lies"


# -- the folder ------------------------------------------------------------------------------------


def test_a_version_holds_what_was_written(tmp_path):
    answers = [
        an_answer([4, 5], prompt=list(range(50)), time=10.0, cohort="m|a|de|eu"),
        an_answer([6], prompt=[7], time=20.0, repeats=4),
    ]
    folder = make_corpus(tmp_path / "app", answers)
    assert folder == tmp_path / "app" / "v1"
    first, second = read_corpus_answers(folder, "corpus")
    assert (first.prompt_ids, first.output_ids) == (list(range(50 - LEAD, 50)), [4, 5])
    assert (first.cohort, first.time, second.repeats) == ("m|a|de|eu", 10.0, 4)
    manifest = read_corpus_manifest(folder, "corpus")
    assert (manifest.answers, manifest.tokens, manifest.newest) == (2, 3, 20.0)
    assert {label: part.tokens for label, part in manifest.cohorts.items()} == {
        "m|a|de|eu": 2,
        "m|app|en|eu": 1,
    }


def test_each_write_is_a_new_version_and_leaves_the_others(tmp_path):
    first = make_corpus(tmp_path, [an_answer([1, 2])])
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    (tmp_path / "v7").mkdir()  # somebody's folder: the number is taken
    second = make_corpus(tmp_path, [an_answer([3, 4])])
    assert second.name == "v8" and corpus_versions(tmp_path) == [first, second]
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"v1", "v7", "v8"}


def test_a_killed_writer_leaves_no_version(tmp_path, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.core.cache.os.rename", killed)
    with pytest.raises(KeyboardInterrupt):
        make_corpus(tmp_path, [an_answer([1, 2])])
    monkeypatch.undo()
    assert corpus_versions(tmp_path) == []
    assert make_corpus(tmp_path, [an_answer([1, 2])]).name == "v1"


def test_expired_versions_are_deleted(tmp_path):
    now = time.time()
    old = make_corpus(tmp_path, [an_answer([1])], expires=now + 5)
    new = make_corpus(tmp_path, [an_answer([2])], expires=now + 50)
    assert remove_expired(tmp_path, now) == []
    assert remove_expired(tmp_path, now + 10) == [old.name]
    assert corpus_versions(tmp_path) == [new]


# -- refusals --------------------------------------------------------------------------------------


def refusal(folder: Path, target=None) -> str:
    with pytest.raises(InvalidRequest) as caught:
        build(parse_spec(f"cor=suffix,corpus={folder}"), BuildContext(target=target))
    assert caught.value.field == "drafter cor, corpus"
    return str(caught.value)


def test_a_folder_without_a_corpus_is_refused(folder, tmp_path):
    assert "the folder of a corpus" in refusal(tmp_path / "nowhere")
    assert f"one version of this corpus, such as {folder}" in refusal(folder.parent)
    (folder / MANIFEST).write_text(json.dumps({"format": "paceline-set/1"}))
    assert "a corpus of the format paceline-corpus/1" in refusal(folder)


def test_an_expired_corpus_is_refused(tmp_path):
    folder = make_corpus(tmp_path, [an_answer(ANSWER)], expires=time.time() - 1)
    assert "that has not expired; this one did" in refusal(folder)


def test_a_damaged_corpus_is_refused(folder):
    path = folder / "answers.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert "the content of answers.safetensors has changed" in refusal(folder)


def test_a_manifest_that_was_edited_or_torn_is_refused(folder):
    path = folder / MANIFEST
    text = path.read_text()
    path.write_text(text.replace('"expires": 1', '"expires": 9'))  # a longer life
    assert "the content of manifest.json has changed" in refusal(folder)
    path.write_text(text[:-20])
    assert "the folder of a corpus, with its manifest.json" in refusal(folder)
    path.write_text(text.replace('"version": 1', '"version": "one"'))
    with pytest.raises(InvalidRequest, match=r"manifest.json.version: got 'one'"):
        drafter_of(folder)


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    target = load_model(str(save_tiny(tmp_path / "model")))
    ours = tokenizer_digest(target.path)
    right = make_corpus(tmp_path / "right", [an_answer(ANSWER)], tokenizer=ours)
    assert load_corpus(str(right), target, "corpus").manifest.answers == 1
    wrong = make_corpus(tmp_path / "wrong", [an_answer(ANSWER)])
    message = refusal(wrong, target)
    assert "a corpus of model's tokenizer" in message and ours[:12] in message
    assert "made for tiny's (ffffffffffff)" in message


def test_a_model_without_a_tokenizer_file_takes_no_corpus(folder, tmp_path):
    (tmp_path / "model").mkdir()
    target = load_model(str(save_tiny(tmp_path / "model")))
    (target.path / "tokenizer.json").unlink()
    assert "nothing says what tokenizer" in refusal(folder, target)
