"""Prompts made from others: noise of typing and speech, and what the target says anew."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import SPLITS, read_manifest, read_rows
from paceline.synth.app import read_app
from paceline.synth.ask import Ask
from paceline.synth.sources import Source, read_sources

from .fake import FakeAnswerer, by_seed
from .sets import Killed, content, dying, run
from .tiny import made, write_prompts

TEXTS = [
    f"Where is my order AT-{number}, which I bought {when}? It was due long ago."
    for number in range(10000, 10040)
    for when in ("yesterday", "last week", "this morning")
]
TASK = {"name": "task", "kind": "jsonl", "path": "t.jsonl"}
WAYS = {"short": {"ask": "Shorten: {prompt}", "share": 3}, "angry": {"ask": "Shout: {prompt}"}}
REWRITE = {"name": "anew", "kind": "rewrite", "of": "task", "ways": WAYS}


def noisy(folder: Path, noise: dict[str, float], seed: int = 0, **more: Any) -> list[Source]:
    (folder / "t.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    given = {"name": "noisy", "kind": "noisy", "of": "task", "noise": noise, **more}
    return read_sources(read_app({"name": "t", "sources": [TASK, given]}, folder).sources, seed)


@pytest.mark.parametrize("kind", ["typos", "fillers", "repeats", "bare"])
def test_noise_changes_the_wording_a_little_and_no_number(kind: str, tmp_path: Path) -> None:
    plain, source = noisy(tmp_path, {kind: 1})
    by_key = {prompt.key: prompt.text for prompt in plain.prompts}
    assert len(source.prompts) > 0.9 * len(TEXTS)
    for prompt in source.prompts:
        text = by_key[prompt.origin.removeprefix("#")]
        assert prompt.text != text and prompt.place.startswith(f"{kind}:")
        assert difflib.SequenceMatcher(None, text.lower(), prompt.text.lower()).ratio() > 0.75
        order = text.split()[4].strip(",")
        assert order in prompt.text
    words = source.prompts[0].text
    if kind == "bare":
        assert words.startswith("where is my order AT-1") and not words.endswith(".")
    if kind in ("fillers", "repeats"):
        assert len(words.split()) > len(TEXTS[0].split())


def test_noise_has_its_shares_and_is_the_seeds(tmp_path: Path) -> None:
    texts = [
        [prompt.text for prompt in noisy(tmp_path, {"typos": 3, "bare": 1}, seed)[1].prompts]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] and sorted(texts[0]) != sorted(texts[2])
    _, source = noisy(tmp_path, {"typos": 3, "bare": 1})
    kinds = Counter(prompt.place.partition(":")[0] for prompt in source.prompts)
    assert 1.8 < kinds["typos"] / kinds["bare"] < 5
    assert len(noisy(tmp_path, {"typos": 1}, count=7)[1].prompts) == 7


def saying(ask: Ask) -> tuple[tuple[int, ...], str]:
    """Answer requests to say a prompt anew with that prompt and one word more."""
    text = ask.messages[-1]["content"]
    way = text.partition(": ")[0]
    if way not in ("Shorten", "Shout"):
        return by_seed(ask)
    said = f'"{way} {text.partition(": ")[2]}"'
    # the tiny tokenizer has a token for each letter, in the order of their codes
    ids = tuple(ask_ids(said))
    return (*ids, END[0]), "stop"


END: list[int] = []
ENCODE: list[Any] = []


def ask_ids(text: str) -> list[int]:
    return list(ENCODE[0](text, add_special_tokens=False)["input_ids"])


def test_what_the_target_says_anew_is_asked_as_a_prompt_and_stays_on_its_side(
    target: Path, tmp_path: Path
) -> None:
    write_prompts(tmp_path / "t.jsonl", 40, "item")
    sources = [TASK, REWRITE]
    parts = made(tmp_path, target, sources=sources, held_out=0.3, size={"rows": 80})
    tokenizer = parts[2].target.tokenizer
    END[:], ENCODE[:] = [min(parts[2].target.loaded.eos_ids)], [tokenizer]
    answerer = FakeAnswerer(saying)
    run(parts, tmp_path / "set", answerer)
    asked = [ask for ask in answerer.asked if ask.messages[-1]["content"][:5] in ("Short", "Shout")]
    assert len(asked) == 40
    assert all(len(ask.messages) == 1 and not ask.bound for ask in asked)  # plain chat
    rows = {split: list(read_rows(tmp_path / "set", split)) for split in SPLITS}
    anew = [row for split in rows for row in rows[split] if row.source.startswith("anew#")]
    ways = Counter(row.source.partition("#")[2].partition(":")[0] for row in anew)
    assert ways["short"] > ways["angry"] > 0
    assert all(row.prompt.startswith(("Shorten item", "Shout item")) for row in anew)
    numbers = {
        split: {row.prompt.split()[-1] for row in of_split} for split, of_split in rows.items()
    }
    assert numbers["held_out"] and not numbers["held_out"] & numbers["train"]


def test_a_killed_run_says_the_same_anew(target: Path, tmp_path: Path) -> None:
    write_prompts(tmp_path / "t.jsonl", 40, "item")
    parts = made(tmp_path, target, sources=[TASK, REWRITE], size={"rows": 50})
    tokenizer = parts[2].target.tokenizer
    END[:], ENCODE[:] = [min(parts[2].target.loaded.eos_ids)], [tokenizer]
    run(parts, tmp_path / "whole", FakeAnswerer(saying))
    killed = dying(45)
    killed._say = saying
    with pytest.raises(Killed):
        run(parts, tmp_path / "killed", killed)
    assert read_manifest(tmp_path / "killed").shards
    run(parts, tmp_path / "killed", FakeAnswerer(saying, order=3))
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_what_is_cut_or_of_another_length_is_dropped(target: Path, tmp_path: Path) -> None:
    write_prompts(tmp_path / "t.jsonl", 20, "item")
    source = {**REWRITE, "length": [30, 400]}
    parts = made(tmp_path, target, sources=[TASK, source], size={"rows": 40})
    tokenizer = parts[2].target.tokenizer
    END[:], ENCODE[:] = [min(parts[2].target.loaded.eos_ids)], [tokenizer]
    run(parts, tmp_path / "set", FakeAnswerer(saying))
    assert read_manifest(tmp_path / "set").counts["turn_length"] == 20
    cut = FakeAnswerer(lambda ask: (by_seed(ask)[0], "length"))
    run(parts, tmp_path / "cut", cut)
    assert read_manifest(tmp_path / "cut").counts["turn_cut"] == 20


CONSENT = {"by": "customers of shop.example", "to": "training drafters", "date": "2026-01-31"}


def log(folder: Path, *lines: object) -> list[Source]:
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    given = {"name": "log", "kind": "log", "path": "log.jsonl"}
    specs = read_app({"name": "t", "sources": [given]}, folder).sources
    return read_sources(specs, 0, user_data=True)


def test_requests_of_a_log_become_prompts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "and "}, {"type": "text", "text": "now?"}]
    picture = [{"type": "image_url", "image_url": {"url": "x"}}]
    (source,) = log(
        tmp_path,
        {"consent": CONSENT},
        {"model": "m", "messages": [{"role": "user", "content": "where is it?"}]},
        {"custom_id": "1", "body": {"messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": parts},
        ]}},
        {"messages": [{"role": "user", "content": picture}]},
        {"prompt": "no chat"},
    )  # fmt: skip
    talks = {tuple((m["role"], m["content"]) for m in p.messages) for p in source.prompts}
    assert talks == {
        (("user", "where is it?"),),
        (("system", "be brief"), ("user", "first"), ("assistant", "answer"), ("user", "and now?")),
    }
    assert source.dropped == {"no_text": 1, "no_field": 1}
    assert source.licence == ("consent of customers of shop.example, 2026-01-31: training drafters")


@pytest.mark.parametrize(
    "first",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        {"consent": True},
        {"consent": {**CONSENT, "by": ""}},
        {"consent": {"by": "us"}},
        [],
    ],
)
def test_a_log_without_consent_is_refused_by_name(first: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"log\.jsonl.*who agreed, to what and when") as caught:
        log(tmp_path, first, {"messages": [{"role": "user", "content": "hi"}]})
    assert caught.value.field == "sources[0].path"


def test_a_log_needs_the_word_of_the_command_too(tmp_path: Path) -> None:
    specs = read_app({"name": "t", "sources": [
        {"name": "log", "kind": "log", "path": "log.jsonl"}
    ]}, tmp_path).sources  # fmt: skip
    with pytest.raises(InvalidRequest, match="--user-data"):
        read_sources(specs, 0)
