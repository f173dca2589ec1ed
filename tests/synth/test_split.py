"""How prompts are split: whole phrases and beginnings, and no near-duplicate across."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import SPLITS, TrainingRow, read_manifest, read_rows
from paceline.synth.ask import Ask
from paceline.synth.folder import open_set
from paceline.synth.prompts import keyed, share_of
from paceline.synth.split import SplitRule, held_origins

from .fake import FakeAnswerer, by_seed
from .sets import fresh, run
from .tiny import made, write_prompts

PHRASES = [f"{verb} {{thing}} now" for verb in ("send", "find", "stop", "swap", "wrap", "sell")]


def rows_of(folder: Path) -> dict[str, list[TrainingRow]]:
    return {split: list(read_rows(folder, split)) for split in SPLITS}


def test_prompts_without_an_origin_fall_by_their_key_alone() -> None:
    keys = [f"{2 * keyed(i):016x}" for i in range(4000)]
    few, more = (SplitRule(share=share, origins=0, held_out=[]) for share in (0.05, 0.2))
    held = [key for key in keys if few.split_of("on_task", key, "") == "held_out"]
    assert 140 < len(held) < 260
    assert all(more.split_of("replay", key, "") == "held_out" for key in held)
    for part in ("neighbour", "foreign"):
        assert {more.split_of(part, key, "") for key in keys} == {part}
    assert share_of("0" * 16) == 0 and share_of("f" * 16) < 1


def test_a_larger_share_takes_more_origins_and_lets_go_of_none() -> None:
    origins = [f"phrase {i}" for i in range(40)]
    few, more = held_origins(origins, 0.01), held_origins(reversed(origins), 0.2)
    assert len(few) == 1 and len(more) == 8 and set(few) < set(more)
    assert held_origins(origins, 0) == held_origins(["one phrase"], 0.5) == []


def test_no_filling_of_a_held_out_phrase_is_trained_on(target: Path, tmp_path: Path) -> None:
    slots = {"thing": [f"{a}{b} {c}" for a in "xyz" for b in "lmn" for c in ("cup", "hat")]}
    (tmp_path / "p.yaml").write_text(json.dumps({"phrases": PHRASES, "slots": slots}))
    source = {"name": "phrases", "kind": "phrases", "path": "p.yaml", "count": 600}
    run(made(tmp_path, target, sources=[source], held_out=0.3, size={"rows": 60}), tmp_path / "s")
    rows = rows_of(tmp_path / "s")
    verbs = {split: {row.prompt.split()[0] for row in rows[split]} for split in rows}
    assert len(verbs["held_out"]) == 2 and len(verbs["train"]) == 4
    assert not verbs["held_out"] & verbs["train"]
    split = read_manifest(tmp_path / "s").app["split"]
    assert split["by"] == "origin" and split["share"] == 0.3 and split["origins"] == 4
    assert {phrase.split()[0] for phrase in split["held_out"]} == verbs["held_out"]
    assert {row.origin for row in rows["held_out"]} == set(split["held_out"])


def test_turns_with_one_beginning_are_on_one_side(target: Path, tmp_path: Path) -> None:
    starts = ["Where", "When", "Why", "Who"]
    source = {"name": "self", "kind": "self", "starts": starts, "length": [1, 400],
              "max_tokens": 100}  # fmt: skip
    parts = made(tmp_path, target, sources=[source], held_out=0.25, size={"rows": 60})
    end = min(parts[2].target.loaded.eos_ids)

    def turns(ask: Ask) -> tuple[tuple[int, ...], str]:
        ids, reason = by_seed(ask)
        return ((*ids, end), "stop") if not ask.messages else (ids, reason)

    run(parts, tmp_path / "set", FakeAnswerer(turns))
    rows = rows_of(tmp_path / "set")
    (held,) = {row.origin for row in rows["held_out"]}
    assert {row.origin for row in rows["train"]} == set(starts) - {held}


@pytest.mark.parametrize("first", ["train", "foreign"])
def test_of_near_duplicates_across_the_splits_the_later_is_dropped(
    first: str, target: Path, tmp_path: Path
) -> None:
    words = "please tell me when the blue cup that I have bought comes"
    write_prompts(tmp_path / "other.jsonl", 20, "entirely other words in each of them")
    (tmp_path / "one.jsonl").write_text(json.dumps({"prompt": f"{words} home"}) + "\n")
    (tmp_path / "two.jsonl").write_text(json.dumps({"prompt": f"{words} here"}) + "\n")
    heavy, light = {"weight": 100.0}, {"weight": 0.01}
    task = {"kind": "jsonl", "part": "on_task"}
    sources = [
        {"name": "same", "path": "one.jsonl", **task, **(heavy if first == "train" else light)},
        {"name": "other", "path": "other.jsonl", **task},
        {"name": "from elsewhere", "kind": "jsonl", "path": "two.jsonl", "part": "foreign"},
    ]
    mix = {"on_task": 0.95 if first == "train" else 0.05,
           "foreign": 0.05 if first == "train" else 0.95}  # fmt: skip
    parts = made(tmp_path, target, sources=sources, mix=mix, held_out=0, size={"rows": 99})
    run(parts, tmp_path / "set")
    rows = rows_of(tmp_path / "set")
    assert [row.source for row in rows["foreign"]] == (
        [] if first == "train" else ["from elsewhere#0"]
    )
    assert ("same#0" in {row.source for row in rows["train"]}) == (first == "train")
    assert read_manifest(tmp_path / "set").counts["near_duplicate"] == 1
    assert len(rows["train"]) == (21 if first == "train" else 20)


@pytest.mark.parametrize(("same_answer", "near"), [(1, 1), (2, 0)])
def test_answers_count_where_the_application_expects_different_ones(
    same_answer: int, near: int, target: Path, tmp_path: Path
) -> None:
    """Two prompts without a word in common get nearly the same answer."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "one two three"}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "vier fuenf sechs"}) + "\n")
    sources = [
        {"name": "task", "kind": "jsonl", "path": "a.jsonl"},
        {"name": "far", "kind": "jsonl", "path": "b.jsonl", "part": "foreign"},
    ]
    parts = made(tmp_path, target, sources=sources, held_out=0, same_answer=same_answer)
    last = iter((7, 8))
    run(parts, tmp_path / "set", FakeAnswerer(lambda ask: ((*range(1, 60), next(last)), "length")))
    assert read_manifest(tmp_path / "set").counts.get("near_duplicate", 0) == near


def test_the_overlap_with_training_stands_in_the_manifest(target: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.jsonl").write_text('{"prompt": "question number 7 of another kind"}\n')
    write_prompts(tmp_path / "near.jsonl", 8)
    sources = [
        {"name": "task", "kind": "jsonl", "path": "near.jsonl"},
        {"name": "far", "kind": "jsonl", "path": "elsewhere.jsonl", "part": "foreign"},
    ]
    parts = made(tmp_path, target, sources=sources, held_out=0, same_answer=99)
    shared = tuple(range(1, 21))

    def say(ask: Ask) -> tuple[tuple[int, ...], str]:
        is_far = "another" in ask.messages[-1]["content"]
        return (shared[:14] + tuple(range(50, 56)) if is_far else shared), "length"

    run(parts, tmp_path / "set", FakeAnswerer(say))
    overlap = read_manifest(tmp_path / "set").app["overlap"]
    # 1 of 4 runs of three words, (question, number, 7), and 7 of 13 runs of eight tokens
    assert overlap == {
        "foreign": {"rows": 1, "prompts": 1 / 4, "answers": 7 / 13, "answers_over_half": 1}
    }


def test_a_set_that_was_split_prompt_by_prompt_is_readable_and_not_grown(
    target: Path, tmp_path: Path
) -> None:
    parts = made(tmp_path, target)
    run(parts, tmp_path / "set")
    path = tmp_path / "set" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["app"]["split"]
    path.write_text(json.dumps(manifest))
    assert list(read_rows(tmp_path / "set", "train"))
    with pytest.raises(InvalidRequest, match="app: how prompts are split changed") as caught:
        open_set(tmp_path / "set", fresh(parts), parts[0])
    assert caught.value.field == "out"
