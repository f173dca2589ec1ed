"""What a run is judged on: held-out text of the task, foreign prompts, and other text."""

from __future__ import annotations

from pathlib import Path

from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.training.data import read_data
from paceline.training.evaluation import Progress, Score
from tests.training.runs import config

ROWS = {
    "train": [("on_task", 10), ("replay", 11), ("on_task", 12)],
    "held_out": [("on_task", 20), ("replay", 21), ("on_task", 22)],
    "neighbour": [("neighbour", 30)],
    "foreign": [("foreign", 40), ("foreign", 41)],
}


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


def read(
    tmp_path: Path, rows: dict[str, list[tuple[str, int]]], **changes: object
) -> dict[str, dict[str, list[int]]]:
    folder = write(tmp_path / "shop", rows)
    identity = dict.fromkeys(("tokenizer_sha256", "template", "weights_sha256"), "")
    chosen = config(tmp_path, folder, tmp_path / "run", steps=1, **changes)
    data = read_data(chosen, identity, 100)
    kinds = {"held_out": data.held_out, "foreign": data.foreign, "other": data.out_of_domain}
    told = {
        kind: {name: [int(text.ids[0]) for text in texts] for name, texts in sets.items()}
        for kind, sets in kinds.items()
    }
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
