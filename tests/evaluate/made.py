"""Rows and whole evaluations that are made up, and a synth set for the tiny model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.core.rounds import AR
from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.evaluate.numbers import set_numbers
from paceline.evaluate.result import (
    DRAFTER,
    DRAFTERS,
    FORMAT,
    FULL,
    ONCE,
    TIMED,
    Evaluation,
    RequestRow,
)

BLOCKS = dict.fromkeys(DRAFTERS, 4)


def row(
    accepted: Sequence[int],
    *,
    name: str = "p",
    prompt_tokens: int = 10,
    tokens: int | None = None,
    counted: int | None = None,
    seconds: float = 0.5,
    drafted: int = 4,
) -> RequestRow:
    """A request whose drafter had `accepted` in its rounds, and half of AR's second for it."""
    rounds, position = [], 1
    for count in accepted:
        rounds.append([position, drafted, count])
        position += 1 + count
    tokens = position if tokens is None else tokens
    sides = [name for name in (*TIMED, *ONCE) if name != AR]
    return {
        "prompt": name,
        "prompt_sha256": f"sha of {name}",
        "prompt_tokens": prompt_tokens,
        "seed": 0,
        "output_tokens": tokens,
        "output_sha256": "",
        "counted_tokens": tokens if counted is None else counted,
        "forced_tokens": 0,
        "grammar_sha256": None,
        "finish_reason": "stop",
        "same_text": dict.fromkeys(sides, True),
        "seconds": {side: [1.0 if side == AR else seconds] for side in TIMED},
        "rounds": dict.fromkeys(sides, rounds),
    }


def random_rows(count: int, seed: int = 0, most: int = 4) -> list[RequestRow]:
    rng = random.Random(seed)
    return [
        row([rng.randint(0, most) for _ in range(rng.randint(3, 30))], name=f"p{index}")
        for index in range(count)
    ]


def evaluated(
    sets: dict[str, list[RequestRow]], roles: dict[str, str] | None = None, **changes: Any
) -> Evaluation:
    """An evaluation of these rows at T = 0, as evaluate() returns it."""
    return Evaluation.from_json(made_up(sets, roles, **changes), "made up")


def made_up(
    sets: dict[str, list[RequestRow]], roles: dict[str, str] | None = None, **changes: Any
) -> dict[str, Any]:
    """The JSON of an evaluation of these rows at T = 0. `roles` are those of sets by name."""
    results = [
        {"set": name, "role": (roles or {}).get(name, "out of domain"),
         "choice": None, "temperature": 0.0, "left_out": 0,
         "warmed": "nothing", "grammar": None, **numbers_of(rows), "rows": rows}
        for name, rows in sets.items()
    ]  # fmt: skip
    return {
        "format": FORMAT,
        "date": "2026-01-02T03:04:05+00:00",
        "paceline": "0",
        "model": "tiny",
        "drafter": "mine",
        "drafters": {who: {"version": "v", "block": BLOCKS[who]} for who in DRAFTERS},
        "machine": {"name": "a CPU", "threads": 1, "device": "cpu", "dtype": "float32",
                    "quantize": None, "network": "torch"},
        "settings": {"prompts": 9, "tokens": 256, "temperatures": [0.0], "runs": 1, "seed": 0},
        "same_text": all(one["same_text"] for one in results),
        "results": results,
        **changes,
    }  # fmt: skip


def numbers_of(rows: list[RequestRow]) -> dict[str, Any]:
    return set_numbers(rows, BLOCKS, 256).model_dump(mode="json", by_alias=True)


def synth_row(prompt: str, answer: str, part: str = "on_task") -> TrainingRow:
    """A row of single bytes."""
    start, ids = len(prompt), tuple(b % 251 + 4 for b in (prompt + answer).encode())
    return TrainingRow(ids, ((start, len(ids)),), prompt, part, "en", "stop", 0.0, 0, prompt)


def synth_set(folder: Path, *, train: int = 3, target: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    rows = {
        "train": [synth_row(f"learnt {i}", "an answer to it") for i in range(train)],
        "held_out": [synth_row(f"question {i}", "said", "replay" if i > 3 else "on_task")
                     for i in range(6)],
        "neighbour": [synth_row(f"else {i}", "said", "neighbour") for i in range(2)],
        "foreign": [synth_row("from elsewhere", "said", "foreign")],
    }  # fmt: skip
    shards = [write_shard(folder, split, 0, rows[split]) for split in rows if rows[split]]
    write_manifest(folder, Manifest(target=target or {}, app={}, shards=shards))
    return folder


FULLY = f"{DRAFTER}/{FULL}"
