"""The loop and the set that it leaves: the same in whatever order answers come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import SPLITS, read_manifest, read_rows
from paceline.synth.answer import Ask
from paceline.synth.job import SynthJob

from .fake import FakeAnswerer, by_seed
from .sets import Killed, content, dying, run
from .tiny import made, write_prompts


def test_a_set_has_its_rows_parts_and_spans(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target, held_out=0.2)
    collector = run(parts, tmp_path / "set")
    rows = {split: list(read_rows(tmp_path / "set", split)) for split in SPLITS}
    manifest = read_manifest(tmp_path / "set")
    assert sum(map(len, rows.values())) == 40 == manifest.counts["rows"]
    assert collector.complete and not manifest.user_data
    assert {row.part for row in rows["train"]} == {"on_task", "replay"}
    assert {row.part for row in rows["neighbour"]} == {"neighbour"} and rows["held_out"]
    decode = parts[2].target.tokenizer.decode
    for row in rows["train"] + rows["held_out"]:
        ((start, end),) = row.spans
        assert end == len(row.ids) and row.seed and row.key
        name, number = row.source.split("#")
        prompt = f"{name} number {number}?"
        own = f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nQ: {prompt}"
        plain = f"<|im_start|>user\n{prompt}"
        head = own if name == "task" else plain
        assert decode(row.ids[:start]) == f"{head}<|im_end|>\n<|im_start|>assistant\n"
    assert manifest.target["name"] == "tiny-target"
    assert manifest.app["description"]["name"] == "tiny"


def test_no_prompt_is_in_two_splits_or_twice(target: Path, tmp_path: Path) -> None:
    sources = [
        {"name": "task", "kind": "jsonl", "path": "task.jsonl", "samples": 3},
        {"name": "again", "kind": "jsonl", "path": "task.jsonl", "part": "neighbour"},
        {"name": "more", "kind": "jsonl", "path": "more.jsonl", "part": "neighbour"},
    ]
    write_prompts(tmp_path / "more.jsonl", 30, "TASK ")  # double space, other case: the same
    with pytest.raises(InvalidRequest, match="60 duplicate_prompt") as caught:
        made(tmp_path, target, sources=sources)
    assert caught.value.field == "sources[1]"
    with pytest.raises(InvalidRequest, match="30 duplicate_prompt"):
        made(tmp_path, target, sources=[sources[0], sources[2]])
    write_prompts(tmp_path / "more.jsonl", 30, "other")
    parts = made(
        tmp_path, target, sources=[sources[0], sources[2]], held_out=0.3, size={"rows": 150}
    )
    run(parts, tmp_path / "set")
    keys = {
        split: {row.key.split(".")[0] for row in read_rows(tmp_path / "set", split)}
        for split in SPLITS
    }
    assert all(keys[split] for split in ("train", "held_out", "neighbour"))
    assert not keys["train"] & keys["held_out"] and not keys["train"] & keys["neighbour"]
    every = [row.key for split in SPLITS for row in read_rows(tmp_path / "set", split)]
    assert len(every) == len(set(every)) == 150


@pytest.mark.parametrize(("batch", "order"), [(1, 0), (3, 1), (40, 2)])
def test_the_order_of_answers_leaves_no_trace(
    target: Path, tmp_path: Path, batch: int, order: int
) -> None:
    parts = made(tmp_path, target)
    run(parts, tmp_path / "a")
    run(parts, tmp_path / "b", FakeAnswerer(batch=batch, order=order))
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("after", [0, 1, 17, 30, 47])
def test_a_killed_run_resumes_to_the_same_set(target: Path, tmp_path: Path, after: int) -> None:
    def doubling(ask: Ask) -> tuple[tuple[int, ...], str]:
        ids, reason = by_seed(ask)
        return ids[:2], reason  # short enough to be said twice

    options = {"same_answer": 1, "size": {"rows": 60}, "held_out": 0.2}
    parts = made(tmp_path, target, **options)
    run(parts, tmp_path / "whole", FakeAnswerer(doubling))
    with pytest.raises(Killed):
        killed = dying(after)
        killed._say = doubling
        run(parts, tmp_path / "killed", killed)
    resumed = FakeAnswerer(doubling, batch=5, order=3)
    run(parts, tmp_path / "killed", resumed)
    assert content(tmp_path / "whole") == content(tmp_path / "killed")
    if after > 40:
        assert min(ask.index for ask in resumed.asked) >= 16  # a finished shard is kept


def test_a_finished_set_is_left_alone_and_may_grow(target: Path, tmp_path: Path) -> None:
    run(made(tmp_path, target), tmp_path / "set")
    before = content(tmp_path / "set")
    again = FakeAnswerer()
    run(made(tmp_path, target), tmp_path / "set", again)
    assert not again.asked and content(tmp_path / "set") == before
    run(made(tmp_path, target, size={"rows": 70}), tmp_path / "set")
    after = content(tmp_path / "set")
    assert {name: after[name] for name in before if "parquet" in name} == {
        name: data for name, data in before.items() if "parquet" in name
    }
    grown = [row for split in SPLITS for row in read_rows(tmp_path / "set", split)]
    run(made(tmp_path, target, size={"rows": 70}), tmp_path / "at-once")
    at_once = [row for split in SPLITS for row in read_rows(tmp_path / "at-once", split)]
    assert grown == at_once


@pytest.mark.parametrize("order", [0, 3])
def test_a_run_that_is_out_of_time_leaves_a_whole_set_to_go_on_with(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    parts = made(tmp_path, target, size={"rows": 40})
    now = iter(range(10**6))  # a second passes at each look at the clock
    with monkeypatch.context() as patch:
        clock = SimpleNamespace(monotonic=lambda: float(next(now)))
        patch.setattr("paceline.synth.job.time", clock)
        answerer = FakeAnswerer(order=order)
        early = SynthJob(*parts).make(tmp_path / "set", answerer, hours=15 / 3600)
    assert not early.complete and len(answerer.asked) == 14
    manifest = read_manifest(tmp_path / "set")
    assert 0 < manifest.counts["rows"] <= 14 and manifest.app["overlap"] is not None
    whole = run(parts, tmp_path / "set")
    run(parts, tmp_path / "at-once")
    assert whole.complete and all(
        [*read_rows(tmp_path / "set", split)] == [*read_rows(tmp_path / "at-once", split)]
        for split in SPLITS
    )


def test_a_size_in_answer_tokens_ends_the_run(target: Path, tmp_path: Path) -> None:
    collector = run(made(tmp_path, target, size={"answer_tokens": 100}), tmp_path / "set")
    said = [
        end - start
        for split in SPLITS
        for row in read_rows(tmp_path / "set", split)
        for start, end in row.spans
    ]
    assert sum(said) == collector.counts["answer_tokens"] >= 100
    assert sum(said) - max(said) < 100


def test_sources_that_run_dry_end_the_run_short(target: Path, tmp_path: Path) -> None:
    collector = run(made(tmp_path, target, size={"rows": 500}), tmp_path / "set")
    assert not collector.complete and collector.counts["rows"] == 180


def test_answers_are_dropped_with_a_reason(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target)
    end = parts[2].target.tokenizer.eos_token_id
    said: Iterator[Any] = iter([((end,), "stop"), ((), "stop"), ((5,), "stop"), ((5,), "stop")])
    answerer = FakeAnswerer(lambda ask: next(said, None) or by_seed(ask), batch=1)
    counts = run(parts, tmp_path / "set", answerer).counts
    assert counts["empty"] == 2 and counts["duplicate_answer"] == 1
    assert counts["prompts"] == counts["rows"] + 3


def test_an_answer_may_be_said_as_often_as_the_application_allows(
    target: Path, tmp_path: Path
) -> None:
    parts = made(tmp_path, target, same_answer=7)
    collector = run(parts, tmp_path / "set", FakeAnswerer(lambda ask: ((7, 8), "length")))
    assert collector.counts["rows"] == 7 and collector.counts["duplicate_answer"] == 173


def test_an_answer_that_its_grammar_did_not_end_is_dropped(target: Path, tmp_path: Path) -> None:
    parts = made(tmp_path, target, grammar={"kind": "choice", "value": ["yes", "no"]})
    counts = run(parts, tmp_path / "set").counts
    assert counts["grammar_cut"] == 60 and "rows_on_task" not in counts
    assert counts["rows"] == counts["rows_replay"] + counts["rows_neighbour"]


def test_a_prompt_that_the_target_writes_is_answered_once(target: Path, tmp_path: Path) -> None:
    sources = [{"name": "self", "kind": "self", "length": [2, 50], "count": 40}]
    parts = made(tmp_path, target, sources=sources, shard=8)
    encode, end = parts[2].target.tokenizer, parts[2].target.tokenizer.eos_token_id

    def say(ask: Ask) -> tuple[tuple[int, ...], str]:
        if ask.messages:
            return by_seed(ask)
        turn = ["what is it?", "tell me", "x", "go on, then", "more"][ask.index % 5]
        reason = "length" if turn == "more" else "stop"
        return (*encode(turn)["input_ids"], end), reason

    answerer = FakeAnswerer(say)
    counts = run(parts, tmp_path / "set", answerer).counts
    assert counts == {
        "prompts": 40, "rows": 3, "rows_on_task": 3, "answer_tokens": counts["answer_tokens"],
        "duplicate_prompt": 21, "turn_length": 8, "turn_cut": 8,
    }  # fmt: skip
    assert answerer.closed
    # A prompt that is known by then is not answered again.
    assert sum(bool(ask.messages) for ask in answerer.asked) < 24


def test_a_preview_answers_some_of_each_source_and_writes_nothing(
    target: Path, tmp_path: Path
) -> None:
    job = SynthJob(*made(tmp_path, target))
    before = content(tmp_path)
    samples = list(job.preview(FakeAnswerer(), 2))
    assert [s.item.spec.name for s in samples] == ["task", "task", "chat", "chat", "far", "far"]
    assert all(s.answer is not None and s.reason is None for s in samples)
    assert content(tmp_path) == before
