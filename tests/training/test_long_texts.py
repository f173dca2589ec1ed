"""Answers behind 8,000 and 16,000 tokens: only the window in front of anchors is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.models.loader import identity, load_model
from paceline.models.networks import build_network, sequence_features
from paceline.training.run import prepare
from paceline.training.workers import Workers
from tests.engine.tiny import save_tiny
from tests.training.runs import config
from tests.training.twins import random_text

WINDOW, ANSWER = 64, 48
LENGTHS = (8_000, 16_000)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("far") / "tiny"
    folder.mkdir()
    return save_tiny(folder, blur=0.0, num_layers=5, max_position_embeddings=20_000)


def write_long(folder: Path, target: Path) -> Path:
    """Write a set with a text of each length, and short held-out ones."""
    folder.mkdir()

    def row(tokens: int, number: int) -> TrainingRow:
        ids = tuple(random_text(tokens, 0, 200, number).ids.tolist())
        spans = ((tokens - ANSWER, tokens),)
        source, key = f"own#{number}", str(number)
        return TrainingRow(ids, spans, source, "on_task", "en", "stop", 0.0, 0, key)

    rows = [row(tokens, number) for number, tokens in enumerate(LENGTHS)]
    shards = [
        write_shard(folder, "train", 0, rows),
        write_shard(folder, "held_out", 0, [row(100, 9)]),
    ]
    about = identity(load_model(str(target)))
    write_manifest(folder, Manifest(target=about, app={}, shards=shards))
    return folder


@pytest.mark.slow
def test_long_texts_are_learnt_from_with_the_window_alone(far, tmp_path):
    sets = write_long(tmp_path / "long", far)
    options = {"texts": 2, "micro": 2, "max_tokens": 20_000, "window": WINDOW, "steps": 40}
    trainer = prepare(config(far, sets, tmp_path / "run", **options), Workers("cpu"))
    assert [len(text) for text in trainer.data.train] == list(LENGTHS)
    picks, size = trainer.order.step(0), trainer.form.config.block_size
    pack = trainer._pack(picks, size)
    # What is kept of a text, and what a step computes with, does not grow with the text.
    assert len(pack.tokens) <= 2 * (WINDOW + ANSWER)
    for seen in trainer.target._kept.values():
        assert len(seen.features) <= WINDOW + ANSWER
    assert trainer.target.computed_tokens == sum(LENGTHS)
    # It is what the whole texts show at these places.
    loaded = load_model(str(far))
    network, _ = build_network(loaded, dtype="float32")
    layers = trainer.form.config.target_layer_ids
    for pick, (start, end), first in zip(picks, pack.context, pack.firsts, strict=True):
        network.allocate_kv(-(-len(pick.text) // 16))
        whole = sequence_features(network, pick.text.ids.tolist(), layers)
        assert torch.equal(pack.features[start:end], whole[first : pick.seen])
        assert pick.anchors.min() >= len(pick.text) - ANSWER
    for _ in range(2):
        trainer.take_step()
    assert trainer.target.computed_tokens == sum(LENGTHS)  # each was read once
    before = trainer.form.right(pack).sum()
    for _ in range(30):
        trainer.take_step()
    assert trainer.form.right(pack).sum() > before
