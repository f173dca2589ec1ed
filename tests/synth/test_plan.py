"""The plan: shares hold from the first item on, and it is the same at every start."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

from paceline.synth.plan import Item, available, plan

from .tiny import made, write_prompts


def items(folder: Path, target: Path, count: int | None = None, **changes: Any) -> list[Item]:
    app, sources, _ = made(folder, target, **changes)
    return list(itertools.islice(plan(app, sources), count))


def test_the_mix_holds_at_every_point(target: Path, tmp_path: Path) -> None:
    taken: Counter[str] = Counter()
    for item in items(tmp_path, target, 70):
        taken[item.spec.part] += 1
        for part, share in {"on_task": 0.75, "replay": 0.15, "neighbour": 0.1}.items():
            assert abs(taken[part] - share * (item.index + 1)) <= 1


def test_a_plan_is_the_same_again_and_every_item_has_a_seed_of_its_own(
    target: Path, tmp_path: Path
) -> None:
    first, again = (items(tmp_path, target) for _ in range(2))
    assert first == again and len(first) == 180
    assert [item.index for item in first] == list(range(180))
    assert len({item.seed for item in first}) == 180
    assert all(0 <= item.seed < 2**63 for item in first)
    other = items(tmp_path, target, seed=1)
    assert not {item.seed for item in first} & {item.seed for item in other}


def test_weights_languages_samples_and_what_runs_dry(target: Path, tmp_path: Path) -> None:
    for name, count in (("a", 300), ("b", 300), ("c", 20)):
        write_prompts(tmp_path / f"{name}.jsonl", count, f"{name} is")
    sources = [
        {"name": "a", "kind": "jsonl", "path": "a.jsonl", "weight": 3},
        {"name": "b", "kind": "jsonl", "path": "b.jsonl", "language": "de"},
        {"name": "c", "kind": "jsonl", "path": "c.jsonl", "samples": 2},
    ]
    by = Counter(item.spec.name for item in items(tmp_path, target, 100, sources=sources))
    assert by == {"a": 60, "b": 20, "c": 20}
    shared = {"en": 0.5, "de": 0.5}
    by = Counter(
        item.spec.name for item in items(tmp_path, target, 80, sources=sources, languages=shared)
    )
    assert by == {"b": 40, "a": 30, "c": 10}
    every = items(tmp_path, target, sources=sources)
    assert Counter(item.spec.name for item in every) == {"a": 300, "b": 300, "c": 40}
    sampled = [item for item in every if item.spec.name == "c"]
    assert [item.sample for item in sampled] == [0] * 20 + [1] * 20
    assert len({item.seed for item in sampled}) == 40


def test_what_the_target_writes_has_no_end_or_as_many_as_are_wanted(
    target: Path, tmp_path: Path
) -> None:
    endless = [{"name": "self", "kind": "self"}]
    assert len(items(tmp_path, target, 5000, sources=endless)) == 5000
    bounded = [{"name": "self", "kind": "self", "count": 9}]
    assert len(items(tmp_path, target, sources=bounded)) == 9
    _, sources, _ = made(tmp_path, target, sources=endless)
    assert available(sources[0]) is None
