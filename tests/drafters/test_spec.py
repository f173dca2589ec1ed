from __future__ import annotations

import pytest

from paceline.core import InvalidRequest, ModelError
from paceline.drafters.kinds import KINDS, DrafterSpec
from paceline.drafters.spec import build, network_folders, parse_spec


def spec(name, kind, value=None, *options):
    return DrafterSpec(name=name, kind=kind, value=value, options=options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ngram", spec("ngram", "ngram")),
        ("ngram,max_draft_len=8", spec("ngram", "ngram", None, ("max_draft_len", "8"))),
        (" suffix , max_draft_len=8 ", spec("suffix", "suffix", None, ("max_draft_len", "8"))),
        ("fast=suffix", spec("fast", "suffix")),
        ("draft_model:/m/x", spec("draft_model", "draft_model", "/m/x")),
        ("draft_model=/m/x", spec("draft_model", "draft_model", "/m/x")),
        (
            "small=draft_model:/m/x,max_draft_len=5",
            spec("small", "draft_model", "/m/x", ("max_draft_len", "5")),
        ),
        ("small=Qwen/Qwen2.5-0.5B", spec("small", "draft_model", "Qwen/Qwen2.5-0.5B")),
        ("Qwen/Qwen2.5-0.5B", spec("draft_model", "draft_model", "Qwen/Qwen2.5-0.5B")),
        ("/models/a=b", spec("draft_model", "draft_model", "/models/a=b")),
        ("smollm2-135m", spec("dflash", "dflash", "smollm2-135m")),
        ("fast=SmolLM2-135M,head=full", spec("fast", "dflash", "SmolLM2-135M", ("head", "full"))),
        ("draft_model:smollm2-135m", spec("draft_model", "draft_model", "smollm2-135m")),
        ("qwen2.5-coder-0.5b", spec("draft_model", "draft_model", "qwen2.5-coder-0.5b")),
        ("replay:file.json,al=4", spec("replay", "replay", "file.json", ("al", "4"))),
        ("replay=file.json,al=4", spec("replay", "replay", "file.json", ("al", "4"))),
    ],
)
def test_grammar(text, expected):
    assert parse_spec(text) == expected


def test_existing_path_without_a_slash_is_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gguf").touch()
    assert parse_spec("tiny.gguf") == spec("draft_model", "draft_model", "tiny.gguf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ngrams",
            "drafter: got 'ngrams'; expected one of auto, dflash, draft_model, hybrid, mock, "
            "ngram, replay, suffix",
        ),
        ("eagle:x", "drafter: got 'eagle'; expected one of auto"),
        ("x=eagle", "drafter: got 'eagle'; expected one of auto"),
        ("", "NAME=.KIND"),
        ("a b=ngram", "names are letters"),
        ("=ngram", "names are letters"),
        ("ngram:", "a value after 'ngram'"),
        ("ngram,fast", "'fast' is no key=value"),
        ("ngram,max_draft_len=", "no key=value"),
        ("ngram,max_draft_len=1,max_draft_len=2", "max_draft_len is there twice"),
    ],
)
def test_bad_syntax_is_refused(text, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse_spec(text)
    assert caught.value.field == "drafter"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram,gamma=3", "got 'gamma'; expected one of max_draft_len, min_ngram, max_ngram"),
        ("suffix,max_bytes=-1", "max_bytes: got '-1'; expected a whole number from 0"),
        ("suffix,max_draft_len=0", "max_draft_len: got '0'; expected a whole number from 1 to 64"),
        ("suffix,max_draft_len=65", "max_draft_len: got '65'"),
        ("suffix,min_token_prob=high", "min_token_prob: got 'high'; expected a number from 0 to 1"),
        ("suffix,min_token_prob=nan", "min_token_prob: got 'nan'"),
        ("auto,min_ngram=2", "got 'min_ngram'"),
        ("ngram:file", "got 'file'; expected no value after ngram"),
        ("draft_model", "expected a model"),
        ("hybrid", r"a DFlash drafter \(a folder, hub id or name\) after it"),
        ("draft_model:/m/x,draw=dice", "draw: got 'dice'; expected one of coupled, sample, argmax"),
    ],
)
def test_bad_options_are_refused_when_built(text, message):
    with pytest.raises(InvalidRequest, match=message):
        build(parse_spec(text))


def test_every_kind_is_registered():
    expected = ["auto", "dflash", "draft_model", "hybrid", "mock", "ngram", "replay", "suffix"]
    assert sorted(KINDS) == expected
    for kind in ("auto", "ngram", "suffix"):
        drafter = build(parse_spec(f"mine={kind},max_draft_len=3"))
        assert (drafter.name, drafter.max_draft_len, drafter.kv) == ("mine", 3, None)


def test_a_wrong_path_of_a_drafter_is_called_a_drafter() -> None:
    with pytest.raises(ModelError, match="'/nope': no such drafter"):
        network_folders(["fast=/nope"], "any target")
