"""A tiny target and a set of what it says, for whole runs in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.dataset.loops import MIN_TOKENS
from paceline.dataset.training_set import Manifest, Row, write_manifest, write_shard
from paceline.models.loader import identity, load_model
from tests.engine.tiny import save_tiny

PROMPTS = [f"{first} {second}" for first in ("fox", "zebra", "12", "ab") for second in "abcdef"]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target") / "tiny"
    folder.mkdir()
    return save_tiny(folder, blur=0.0, num_layers=5)


@pytest.fixture(scope="session")
def trainset(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 greedy answers, four of them held out and four more called neighbours."""
    return write_set(tmp_path_factory.mktemp("sets") / "tiny-set", target, PROMPTS)


def write_set(folder: Path, target: Path, prompts: list[str], **named: str) -> Path:
    folder.mkdir(parents=True)
    llm = LLM(str(target), None, dtype="float32", backend="torch", threads=1)
    results = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=40))
    rows = []
    for index, result in enumerate(results):
        start, ids = len(result.prompt_ids), (*result.prompt_ids, *result.token_ids)
        # The tiny target goes round in circles, and no piece may be long enough to be one.
        pieces = range(start, len(ids), MIN_TOKENS - 1)
        rows.append(
            Row(
                ids,
                tuple((at, min(at + MIN_TOKENS - 1, len(ids))) for at in pieces),
                f"own#{index}",
                "on_task",
                "en",
                "stop",
                0.0,
                0,
                str(index),
            )
        )
    shards = [
        write_shard(folder, "train", 0, rows[:-8]),
        write_shard(folder, "held_out", 0, rows[-8:-4]),
        write_shard(folder, "neighbour", 0, rows[-4:]),
    ]
    about = identity(load_model(str(target))) | named
    app = {"description": {"name": "tiny"}, "sources": []}
    write_manifest(folder, Manifest(about, app, shards=shards))
    return folder
