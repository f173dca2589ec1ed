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


def read(tmp_path: Path, rows: dict[str, list[tuple[str, int]]]) -> dict[str, dict[str, list[int]]]:
    folder = write(tmp_path / "shop", rows)
    identity = dict.fromkeys(("tokenizer_sha256", "template", "weights_sha256"), "")
    data = read_data(config(tmp_path, folder, tmp_path / "run", steps=1), identity, 100)
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


def test_foreign_prompts_do_not_decide_which_drafter_is_the_best():
    score = lambda length: Score(10, length, (0.5,))  # noqa: E731
    progress = Progress(0.05, judged=True)
    progress.add(0, {"s": score(2.0)}, {}, {"s": score(1.9)})
    assert progress.add(1, {"s": score(2.5)}, {}, {"s": score(1.5)})
    assert not progress.add(2, {"s": score(2.4)}, {}, {"s": score(3.0)})
    numbers = progress.numbers()
    assert numbers["foreign/s/al"] == 3.0 and abs(numbers["gap/s"] + 0.6) < 1e-9
