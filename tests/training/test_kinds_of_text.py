"""What a run is judged on: held-out text of the task, foreign prompts, and other text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core import InvalidRequest
from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.training.data import read_data
from paceline.training.evaluation import Progress, Score
from paceline.training.packs import Text
from tests.training.runs import config

ROWS = {
    "train": [("on_task", 10), ("replay", 11), ("on_task", 12)],
    "held_out": [("on_task", 20), ("replay", 21), ("on_task", 22)],
    "neighbour": [("neighbour", 30)],
    "foreign": [("foreign", 40), ("foreign", 41)],
}

IDENTITY = dict.fromkeys(("tokenizer_sha256", "template", "weights_sha256"), "")
Seen = tuple[dict[str, dict[str, list[int]]], list[str], dict[str, int]]


def write(folder: Path, rows: dict[str, list[tuple[str, int]]]) -> Path:
    """A set whose rows are told by their first token."""
    folder.mkdir()
    shards = [
        write_shard(folder, split, 0, [
            TrainingRow((first, 5, 6, 7, 8), ((2, 5),), "s#0", part, "en", "stop", 0.0, 0, "0")
            for part, first in of_split
        ])
        for split, of_split in rows.items()
    ]  # fmt: skip
    write_manifest(folder, Manifest(target={}, app={}, shards=shards))
    return folder


def firsts(sets: dict[str, list[Text]]) -> dict[str, list[int]]:
    return {name: [int(text.ids[0]) for text in texts] for name, texts in sets.items()}


def read(
    tmp_path: Path, rows: dict[str, list[tuple[str, int]]], **changes: object
) -> dict[str, dict[str, list[int]]]:
    folder = write(tmp_path / "shop", rows)
    chosen = config(tmp_path, folder, tmp_path / "run", steps=1, **changes)
    data = read_data(chosen, IDENTITY, 100)
    kinds = {"held_out": data.held_out, "foreign": data.foreign, "other": data.out_of_domain}
    told = {kind: firsts(sets) for kind, sets in kinds.items()}
    numbers = [t.number for sets in kinds.values() for texts in sets.values() for t in texts]
    assert len(set(numbers)) == len(numbers) and min(numbers) == len(data.train)
    return told | {"train": {"": [int(text.ids[0]) for text in data.train]}}


def test_chat_is_judged_apart_from_the_task_and_foreign_prompts_never_learnt(tmp_path):
    assert read(tmp_path, ROWS) == {
        "train": {"": [10, 11, 12]},
        "held_out": {"shop": [20, 22]},
        "foreign": {"shop": [40, 41]},
        "other": {"shop/replay": [21], "shop": [30]},
    }


def test_a_set_of_one_kind_is_judged_as_before(tmp_path):
    told = read(tmp_path, {"train": ROWS["train"], "held_out": [("replay", 20), ("replay", 21)]})
    assert told["held_out"] == {"shop": [20, 21]} and told["foreign"] == told["other"] == {}


def test_a_further_set_may_have_foreign_prompts_alone(tmp_path):
    other = write(tmp_path / "benchmark", {"foreign": [("foreign", 50), ("foreign", 51)]})
    told = read(tmp_path, ROWS, held_out={"theirs": str(other)})
    assert told["foreign"] == {"shop": [40, 41], "theirs": [50, 51]}
    assert told["held_out"] == {"shop": [20, 22]}


def read_two(tmp_path: Path, other: dict[str, list[tuple[str, int]]], **named: str) -> Seen:
    """Read a run on the sets `shop` and `general`; `named` are sets of it by their option."""
    sets = {"shop": ROWS, "general": other, "third": other | {"train": [("on_task", 99)]}}
    folders = {name: str(write(tmp_path / name, rows)) for name, rows in sets.items()}
    options = {option: {name: folders[name]} for option, name in named.items()}
    chosen = config(tmp_path, Path(folders["shop"]), tmp_path / "run", steps=1, **options)
    said: list[str] = []
    data = read_data(
        replace(chosen, sets=(folders["shop"], folders["general"])), IDENTITY, 100, said.append
    )
    kinds = {"held_out": data.held_out, "foreign": data.foreign, "other": data.out_of_domain}
    return {kind: firsts(sets) for kind, sets in kinds.items()}, said, data.left_out


def test_a_prompt_that_another_set_trains_on_judges_nothing(tmp_path):
    """An answer to it is no longer unseen, and its text no longer out of domain."""
    told, said, left_out = read_two(
        tmp_path,
        {
            "train": [("on_task", 20), ("on_task", 30), ("on_task", 50), ("replay", 60)],
            "held_out": [("on_task", 11), ("on_task", 12), ("on_task", 50), ("on_task", 51)],
            "neighbour": [("neighbour", 10), ("neighbour", 70)],
        },
    )
    assert told == {
        "held_out": {"shop": [22], "general": [50, 51]},  # 50: it is of one set, as traces may be
        "foreign": {"shop": [40, 41]},
        "other": {"shop/replay": [21], "general": [70]},
    }
    assert left_out == {"shop": 2, "general": 3}
    of_others = "whose prompts another set trains on"
    assert said == [
        f"shop: left out 1 of 2 texts of its held_out split, {of_others}",
        f"general: left out 2 of 4 texts of its held_out split, {of_others}",
        f"shop: left out all texts of its neighbour split, {of_others}",
        f"general: left out 1 of 2 texts of its neighbour split, {of_others}",
    ]


@pytest.mark.parametrize("option", ["held_out", "out_of_domain"])
def test_a_set_to_judge_by_that_is_trained_on_as_a_whole_is_refused(option, tmp_path):
    trained = {"train": [("on_task", 50)], "held_out": [("on_task", 50)]}
    with pytest.raises(InvalidRequest, match=f"{option}: got .*third.* set with prompts that"):
        read_two(tmp_path, trained, **{option: "third"})


def test_a_run_is_refused_that_is_left_with_nothing_to_judge_by(tmp_path, monkeypatch):
    monkeypatch.setitem(ROWS, "held_out", [("on_task", 20)])
    with pytest.raises(InvalidRequest, match=r"held_out: got .* expected a set with a held_out"):
        read_two(tmp_path, {"train": [("on_task", 20)]})


def test_foreign_prompts_of_a_set_that_holds_out_nothing_have_a_gap_too():
    score = lambda length: Score(10, length, (0.5,))  # noqa: E731
    progress = Progress(0.05, judged=True)
    held = {"s": score(2.0), "t": score(3.0)}
    progress.add(0, held, {}, {"s": score(1.5), "theirs": score(1.75)})
    numbers = progress.numbers()
    assert (numbers["gap/s"], numbers["gap/theirs"]) == (0.5, 0.75)


def test_foreign_prompts_do_not_decide_which_drafter_is_the_best():
    score = lambda length: Score(10, length, (0.5,))  # noqa: E731
    progress = Progress(0.05, judged=True)
    progress.add(0, {"s": score(2.0)}, {}, {"s": score(1.9)})
    assert progress.add(1, {"s": score(2.5)}, {}, {"s": score(1.5)})
    assert not progress.add(2, {"s": score(2.4)}, {}, {"s": score(3.0)})
    numbers = progress.numbers()
    assert numbers["foreign/s/al"] == 3.0 and abs(numbers["gap/s"] + 0.6) < 1e-9
