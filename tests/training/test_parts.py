"""The parts that a run is made of: order, course, budget, scores, log, card."""

from __future__ import annotations

import json
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.core import InvalidRequest
from paceline.dataset.run_log import read_log
from paceline.training.config import TrainConfig
from paceline.training.cost import StepCosts, drafter_operations, head_operations
from paceline.training.data import Order, frequent_tokens
from paceline.training.evaluation import BlockTally, walk
from paceline.training.run import prepare, train
from paceline.training.shape import mask_token, tapped_layers
from paceline.training.trackers import JsonLines, open_trackers
from paceline.training.workers import Workers
from tests.engine.tiny import byte_tokenizer
from tests.training.runs import STEP, config, losses, quiet
from tests.training.twins import random_text


def test_an_epoch_takes_every_text_once_in_another_order_than_the_next():
    texts = [random_text(30, 5, 256, number) for number in range(12)]
    order = Order(texts, 3, 4, seed=1)
    epochs = [
        [pick.text.number for step in range(4 * e, 4 * e + 4) for pick in order.step(step)]
        for e in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0] != epochs[1] and epochs[0] != sorted(epochs[0])
    again = Order(texts, 3, 4, seed=1)
    assert [p.text.number for p in again.step(5)] == epochs[1][3:6]  # whatever was asked before


def test_the_head_keeps_the_tokens_that_were_said_most_often():
    counts = torch.tensor([0, 5, 1, 9, 5, 0, 2])
    assert frequent_tokens(counts, 3).tolist() == [1, 3, 4]
    assert frequent_tokens(counts, 2).tolist() == [1, 3]  # ties go to the lower id
    assert frequent_tokens(counts, 99).tolist() == [1, 2, 3, 4, 6]


def test_zero_is_something_said(target, trainset, tmp_path):
    """A share of zero is no default: the selector learns nothing, and no matrix moves."""
    options = {"generation": "dflash2", "selector_share": 0.0, "optimizer": "muon"}
    settings = config(target, trainset, tmp_path, steps=2, matrix_lr=0.0, **options)
    trainer = prepare(settings, Workers("cpu"))
    before = {name: p.detach().clone() for name, p in trainer.form.drafter.named_parameters()}
    for _ in range(2):
        trainer.take_step()
    for name, parameter in trainer.form.drafter.named_parameters():
        still = parameter.ndim == 2 or name.startswith("candidate_selector")
        assert torch.equal(parameter, before[name]) == still, name


# -- scores ----------------------------------------------------------------------------------------


def test_rounds_start_where_the_one_before_was_rejected():
    assert walk(torch.tensor([0, 0, 2, 9, 9, 1])) == [0, 1, 2, 5]


def test_a_score_counts_what_rounds_commit_block_by_block():
    """Runs of 3, 2, 1 and 0 have a mean of 1.5; products of shares would say 1.25 or less."""
    right = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    tally = BlockTally(3)
    for row in right:
        tally.add(row[None], SimpleNamespace(blocks=[(0, 1)]))
    assert tally.score().length == 2.5
    assert tally.score().positions == (0.75, 0.5, 0.25)


def test_a_hit_behind_a_miss_is_no_acceptance():
    tally = BlockTally(3)
    tally.add(torch.tensor([[False, True, True]]), SimpleNamespace(blocks=[(0, 1)]))
    assert tally.score().length == 1.0


def test_easy_stretches_do_not_count_more_than_rounds_visit_them():
    """Anchors 1 to 3 lie inside what the first round commits."""
    right = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 0]]).bool()
    tally = BlockTally(3)
    tally.add(right, SimpleNamespace(blocks=[(0, 5)]))
    assert tally.score().length == (4 + 1) / 2


# -- features --------------------------------------------------------------------------------------


def read(target, trainset, folder, features_gb: float) -> tuple[int, int]:
    """Tokens that the target computes in the first and in the second pass over the texts."""
    trainer = prepare(
        config(target, trainset, folder, steps=1, features_gb=features_gb), Workers("cpu")
    )
    found = []
    for _ in range(2):
        before = trainer.target.computed_tokens
        for text in trainer.data.train:
            trainer.target.read(text)
        found.append(trainer.target.computed_tokens - before)
    return found[0], found[1]


def test_features_are_kept_within_the_budget_and_computed_again_beyond_it(
    target, trainset, tmp_path
):
    first, second = read(target, trainset, tmp_path, 0.1)
    assert first > 0 and second == 0
    assert read(target, trainset, tmp_path, 0.0) == (first, first)
    half = first // 2 * 2 * 64 * 4 / (1 << 30)  # two layers of 64 float32
    _, again = read(target, trainset, tmp_path, half)
    assert 0.3 * first < again < 0.7 * first


def test_texts_that_are_only_evaluated_do_not_displace_those_that_are_trained_on(
    target, trainset, tmp_path
):
    trainer = prepare(config(target, trainset, tmp_path, steps=1), Workers("cpu"))
    tokens = sum(len(text) for text in trainer.data.train)
    trainer.target._left = tokens * 2 * 64 * 4
    for _ in range(2):
        for text in (*trainer.data.held_out["tiny-set"], *trainer.data.train):
            trainer.target.read(text)
    before = trainer.target.computed_tokens
    for text in trainer.data.train:
        trainer.target.read(text)
    assert trainer.target.computed_tokens == before


# -- shape -----------------------------------------------------------------------------------------


def test_layers_are_tapped_as_the_authors_do_where_there_are_enough():
    assert tapped_layers(36, 5) == [1, 9, 17, 25, 33]
    assert tapped_layers(30, 5) == [1, 8, 14, 20, 27]
    assert tapped_layers(5, 2) == [1, 2]
    assert tapped_layers(3, 2) == [0, 1]  # never the last one
    assert tapped_layers(5, 4) == [0, 1, 2, 3]


def test_the_mask_token_is_one_that_text_never_holds():
    tokenizer = byte_tokenizer()
    embedding = torch.randn(260, 8)
    assert mask_token(tokenizer, embedding, {3}, range(256)) == 256  # a row that no token has
    embedding[256:258] = 0  # of which only those with numbers in them can be told from nothing
    assert mask_token(tokenizer, embedding, {3}, range(256)) == 258
    with pytest.raises(InvalidRequest, match="mask_token"):
        mask_token(tokenizer, embedding[:256], {3}, range(256))


# -- numbers ---------------------------------------------------------------------------------------


def test_operations_are_counted_as_products_are():
    from paceline.models.dflash.config import read_dflash_config
    from tests.models.dflash.tiny import config_json

    shape = read_dflash_config(config_json(layers=2))
    # A layer: q and o 64 x 64, k and v 64 x 32, three of 64 x 96; once forward, twice backward.
    assert drafter_operations(shape, 0, 10) == 6 * 10 * 2 * (2 * 4096 + 2 * 2048 + 3 * 6144)
    # A context token: fc 64 x 64 forward and its weight's gradient, k and v of both layers.
    assert drafter_operations(shape, 1, 0) == 2 * (2 * 4096 + 3 * 2 * 2 * 2048)
    assert head_operations(shape, 100, 7) == 2 * 2 * 100 * 64 * 7
    # Alone, a forward is a third of that, and half of the head's and of fc's.
    assert 3 * drafter_operations(shape, 0, 10, 1, 0) == drafter_operations(shape, 0, 10)
    assert drafter_operations(shape, 1, 0, 1, 0) == 2 * (4096 + 2 * 2 * 2048)
    assert 2 * head_operations(shape, 100, 7, 1, 0) == head_operations(shape, 100, 7)


def test_a_phase_at_the_peak_has_a_share_of_one():
    costs = StepCosts(peak=3.0)
    for _ in range(4):
        costs.add(1.0, **STEP)
    costs.phases["drafter"], costs.operations["drafter"] = 2.0, 6.0
    numbers = costs.numbers()
    assert numbers["peak_share/drafter"] == 1.0 and numbers["ms/drafter"] == 500.0


def test_slow_steps_are_told_one_by_one(target, trainset, tmp_path, monkeypatch):
    """Ten of them may take minutes."""
    settings = config(target, trainset, tmp_path / "quick", steps=4)
    train(settings, quiet)
    assert list(losses(tmp_path / "quick")) == [4], "the last one"
    monkeypatch.setattr("paceline.training.telling.SILENCE", 0.0)
    train(config(target, trainset, tmp_path / "slow", steps=4), quiet)
    assert list(losses(tmp_path / "slow")) == [1, 2, 3, 4]


def test_a_resumed_log_drops_what_will_be_written_again(tmp_path):
    log = JsonLines(tmp_path, 0)
    for step in (0, 5, 10):
        log.log(step, {"loss": float(step)})
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 15, "lo')  # a kill cuts a line
    JsonLines(tmp_path, 6).log(10, {"loss": 7.0})
    assert [(row["step"], row["loss"]) for row in read_log(tmp_path)] == [(0, 0), (5, 5), (10, 7)]


def test_a_kill_while_a_resumed_run_cuts_its_log_loses_nothing(tmp_path, monkeypatch):
    log = JsonLines(tmp_path, 0)
    for step in (0, 5, 10):
        log.log(step, {"loss": float(step)})
    before = read_log(tmp_path)

    def killed(source: object, name: object) -> None:
        assert read_log(tmp_path) == before
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            JsonLines(tmp_path, 6)
    assert read_log(tmp_path) == before
    JsonLines(tmp_path, 6)
    assert read_log(tmp_path) == before[:2]


class Recorder:
    """Stands in for wandb, trackio and mlflow, which are not installed here."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict]] = []

    def __getattr__(self, name: str):
        def call(*given, **named):
            self.calls.append((name, {"given": given, **named}))
            return SimpleNamespace(info=SimpleNamespace(run_id="the-first"))

        return call


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_tracker_gets_settings_and_numbers(name, tmp_path, monkeypatch):
    recorder = Recorder()
    monkeypatch.setitem(__import__("sys").modules, name, recorder)
    trackers = open_trackers((name,), tmp_path, {"lr": 0.1}, 0)
    for tracker in trackers:
        tracker.log(5, {"loss": 2.0})
        tracker.close()
    said = json.dumps(recorder.calls, default=str)
    assert '"lr"' in said and '"loss": 2.0' in said and '"step": 5' in said
    assert len(Counter(call for call, _ in recorder.calls)) >= 3
    assert read_log(tmp_path) == [{"step": 5, "loss": 2.0}]


@pytest.mark.parametrize(
    ("name", "begin", "key"),
    [("wandb", "init", "id"), ("trackio", "init", "name"), ("mlflow", "start_run", "run_id")],
)
def test_a_run_that_goes_on_is_the_same_one_for_its_tracker(
    name, begin, key, tmp_path, monkeypatch
):
    def begun(step: int) -> list[Any]:
        recorder = Recorder()
        monkeypatch.setitem(__import__("sys").modules, name, recorder)
        open_trackers((name,), tmp_path, {"lr": 0.1}, step)
        return [given.get(key) for call, given in recorder.calls if call == begin]

    first, on, later = begun(0), begun(5), begun(10)
    assert on == later and on[0] is not None
    assert first == on or (name == "mlflow" and first == [None])
    if name != "mlflow":  # which names its runs itself
        assert begun(0) != on


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    from paceline.training.run import train

    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    settings = TrainConfig(
        model="no-model", sets=("no-set",), out=str(tmp_path), steps=1, trackers=("wandb",)
    )
    with pytest.raises(InvalidRequest, match="pip install wandb"):
        train(settings, print)
