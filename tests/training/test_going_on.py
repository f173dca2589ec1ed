"""Going on from a drafter, and what must not get worse meanwhile."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import parse
from paceline.core import InvalidRequest
from paceline.dataset.run_log import read_log
from paceline.dataset.training_set import read_manifest, read_rows, write_manifest, write_shard
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.models.loader import identity, load_model
from paceline.training import data
from paceline.training import run as run_module
from paceline.training.data import read_data
from paceline.training.evaluation import Progress, Score
from paceline.training.run import TrainingResult, prepare, train
from paceline.training.workers import Workers
from tests.training.runs import OPTIONS, config, drafter_of, lengths, quiet

ONE = Workers("cpu")


def test_training_goes_on_from_a_drafter_with_another_block(target, trainset, tmp_path):
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=8, anchors=32))
    out = tmp_path / "second"
    options = {"layers": None, "taps": None, "block": 9, "init": str(first)}
    second = drafter_of(config(target, trainset, out, steps=40, anchors=32, **options))
    checkpoint = load_checkpoint(second)
    assert checkpoint.config.block_size == 9
    start = load_checkpoint(first)
    assert lengths(out)[0] >= lengths(tmp_path / "first")[-1] - 0.2
    assert set(start.head_ids.tolist()) <= set(checkpoint.head_ids.tolist())
    made = json.loads((second / "provenance.json").read_text())
    assert made["before"]["step"] == 0 and made["init"]["name"] == "drafter"
    assert made["init"]["made"]["step"] <= 8 and made["init"]["made"]["init"] is None
    text = " ".join((second / "README.md").read_text().split())
    assert "Trained from random weights for" in text and ", then for" in text


def test_a_provenance_that_cannot_be_read_is_refused_first(target, trainset, tmp_path):
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=8, anchors=32))
    (first / "provenance.json").write_text("{}")
    options = {"layers": None, "taps": None, "block": None, "init": str(first)}
    with pytest.raises(InvalidRequest, match=r"init: got .* expected a drafter whose prov"):
        train(config(target, trainset, tmp_path / "run", steps=4, **options), quiet)
    assert not (tmp_path / "run").exists()


def test_a_regression_out_of_domain_stops_the_run_and_is_never_the_best(target, trainset, tmp_path):
    """Far too large a learning rate: what was learnt before is lost."""
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=60, anchors=32))
    out = tmp_path / "second"
    watched = tmp_path / "watched"  # of the tiny target's other texts nothing can be learnt
    shutil.copytree(trainset, watched)
    options = {
        "layers": None, "taps": None, "block": None, "init": str(first), "lr": 0.5,
        "out_of_domain": {"watched": str(watched)},
    }  # fmt: skip
    said: list[str] = []
    stopping = config(target, trainset, out, steps=20, on_regression="stop", **options)
    result = train(stopping, said.append)
    assert max(row["step"] for row in read_log(out)) == 4
    assert any("REGRESSION" in line for line in said)
    assert result.drafter is None and result.regressed
    told = r"acceptance length fell on watched by \d+\.\d%, more than the allowed 5.0%, at step 4 "
    told += r"\(held out: \d\.\d\d before the first step, \d\.\d\d then\); no drafter is kept"
    assert re.fullmatch(told, str(result.why)), result.why
    assert not (out / "drafter").exists()
    again = train(stopping, quiet)  # the end was saved: nothing is trained twice
    assert again == result and max(row["step"] for row in read_log(out)) == 4


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (TrainingResult(Path("run/drafter"), None), 0),
        (TrainingResult(Path("run/drafter"), "it fell", regressed=True), 0),
        (TrainingResult(None, "it fell", regressed=True), 3),
        (TrainingResult(None, "nothing was better"), 1),
    ],
)
def test_the_exit_code_says_whether_a_drafter_is_there(result, code, monkeypatch, capsys):
    monkeypatch.setattr(run_module, "train", lambda config, show: result)
    command: Any = parse(["train", "set", "--out", "run", "--steps", "1"])
    assert command.run() == code
    assert (result.why or "") in capsys.readouterr().out


def test_a_loss_in_replay_does_not_hide_behind_the_task(target, trainset, tmp_path):
    """Half of what is held out is chat that the drafter knew before."""
    mixed = tmp_path / "mixed"
    shutil.copytree(trainset, mixed)
    rows = list(read_rows(trainset, "held_out"))
    odd = [replace(row, part="replay") if n % 2 else row for n, row in enumerate(rows)]
    manifest = read_manifest(mixed)
    others = [shard for shard in manifest.shards if not shard.file.startswith("held_out")]
    shard = write_shard(mixed, "held_out", 0, odd)
    write_manifest(mixed, manifest.model_copy(update={"shards": [*others, shard]}))
    made_for = identity(load_model(str(target)))
    found = read_data(config(target, mixed, tmp_path / "run", steps=4), made_for, 512)
    assert list(found.held_out) == ["mixed"] and "mixed/replay" in found.out_of_domain
    count = len(rows) // 2
    assert len(found.held_out["mixed"]) == len(found.out_of_domain["mixed/replay"]) == count
    numbers = [text.number for text in (*found.train, *found.held_out["mixed"])]
    numbers += [text.number for texts in found.out_of_domain.values() for text in texts]
    assert len(set(numbers)) == len(numbers), "features of a text are kept by its number"
    whole = read_data(config(target, trainset, tmp_path / "run", steps=4), made_for, 512)
    assert "tiny-set/replay" not in whole.out_of_domain


def test_random_weights_are_no_standard_to_fall_from(target, trainset, tmp_path):
    """A run from scratch keeps its best drafter, however lucky its first weights were."""

    def score(length: float) -> Score:
        return Score(10, length, (length - 1,))

    progress = Progress(0.05, judged=False)
    assert not progress.add(0, {"own": score(3.0)}, {"other": score(3.0)})
    assert progress.add(4, {"own": score(1.2)}, {"other": score(1.1)})
    assert not progress.regressions and progress.best == 4


def test_progress_flags_what_fell_by_more_than_allowed():
    def score(length: float) -> Score:
        return Score(10, length, (length - 1,))

    progress = Progress(0.05, judged=True)
    assert progress.add(0, {"own": score(1.5)}, {"other": score(2.0)})
    assert progress.add(4, {"own": score(1.8)}, {"other": score(1.91)})
    assert not progress.regressions
    assert not progress.add(8, {"own": score(2.5)}, {"other": score(1.89)})
    assert progress.regressions == {"other": pytest.approx(0.055)}
    assert progress.best == 4 and progress.best_length == 1.8


def test_a_run_whose_better_drafters_fell_elsewhere_says_what_would_allow_them(
    target, trainset, tmp_path
):
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=4))
    options = {"layers": None, "taps": None, "block": None, "init": str(first)}
    trainer = prepare(config(target, trainset, tmp_path / "run", steps=8, **options), ONE)

    def add(step: int, own: float, other: float) -> None:
        held, watched = Score(10, own, (own - 1,)), Score(10, other, (other - 1,))
        trainer.progress.add(step, {"own": held}, {"other": watched, "same": held})

    add(0, 1.5, 2.0)
    add(2, 1.4, 1.0)  # learnt nothing: no --regression would have kept it
    none_better = run_module._result(trainer)
    assert str(none_better.why).startswith("no evaluation was better than before")
    assert not none_better.regressed
    add(4, 1.8, 1.75)
    add(6, 1.6, 1.25)
    assert run_module._result(trainer) == TrainingResult(
        None,
        "no drafter is kept: acceptance length fell on other by 12.5%, more than the allowed "
        "5.0%, at step 4 (held out: 1.50 before the first step, 1.80 then); --regression 0.13 "
        "would allow it, in a run with another --out; the run came to its end",
        regressed=True,
    )
    add(8, 1.55, 2.0)
    kept = run_module._result(trainer)
    assert kept.why is None and kept.drafter is not None and not kept.regressed


def test_patience_ends_a_run_that_no_longer_gets_better(target, trainset, tmp_path):
    out = tmp_path / "run"
    result = train(config(target, trainset, out, steps=100, lr=0.0, patience=2), quiet)
    # The first evaluation after the start counts; two more end the run by a decay of 12 / 10 steps.
    assert max(row["step"] for row in read_log(out)) == 14
    assert result.drafter is not None and result.why == "2 evaluations in a row were no better"


def test_patience_ends_a_run_that_no_longer_gets_better_out_of_domain(
    target, trainset, tmp_path, monkeypatch
):
    real = Progress.add

    def add(self: Progress, step: int, held: Any, other: Any, *rest: Any, **named: Any) -> bool:
        assert other, "the set has neighbours"
        rising, same = 1.5 + step / 100, 1.5
        held = {name: Score(10, rising, (rising - 1,)) for name in held}
        other = {name: Score(10, same, (same - 1,)) for name in other}
        return real(self, step, held, other, *rest, **named)

    monkeypatch.setattr(Progress, "add", add)
    out = tmp_path / "run"
    result = train(config(target, trainset, out, steps=100, patience=2), quiet)
    # The second evaluation in a row is that of step 12; a decay of 12 / 10 steps follows.
    assert lengths(out) == pytest.approx([1.5, 1.54, 1.58, 1.62, 1.64])
    assert result.drafter is not None and result.why == "2 evaluations in a row were no better"


def test_a_whole_head_stays_whole(target, trainset, tmp_path):
    """Going on from a drafter cuts nothing that it could draft before."""
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=8, head_tokens=0))
    assert load_checkpoint(first).head_ids is None
    options = {"layers": None, "taps": None, "block": None, "init": str(first)}
    trainer = prepare(config(target, trainset, tmp_path / "second", steps=8, **options), ONE)
    assert len(trainer.form.head.weight) == 256


def test_a_few_texts_that_hold_the_mask_token_are_left_out(target, trainset, tmp_path, monkeypatch):
    """A drafter's mask token was chosen for the texts it began with."""
    rows = list(read_rows(trainset, "train"))
    mask = OPTIONS["mask_token"]
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=8))
    shutil.copytree(trainset, tmp_path / "more")
    odd = [replace(row, ids=(mask, *row.ids[1:])) for row in rows[:1]]
    shard = write_shard(tmp_path / "more", "train", 1, odd)
    manifest = read_manifest(trainset)
    write_manifest(
        tmp_path / "more", manifest.model_copy(update={"shards": [*manifest.shards, shard]})
    )
    options = {"layers": None, "taps": None, "block": None, "mask_token": None, "init": str(first)}
    settings = config(target, tmp_path / "more", tmp_path / "run", steps=8, **options)
    with pytest.raises(InvalidRequest, match=f"mask_token: got {mask}; expected an id"):
        train(settings, quiet)  # one text of 17 is not few
    monkeypatch.setattr(data, "FEW", 0.1)
    said: list[str] = []
    assert train(settings, said.append).drafter is not None
    assert said[0] == f"left out 1 text that holds token {mask}, the drafter's mask token"
    assert f"; {len(rows)} texts with" in said[1]


def test_a_drafter_of_another_shape_cannot_be_gone_on_from(target, trainset, tmp_path):
    first = drafter_of(config(target, trainset, tmp_path / "first", steps=4))
    with pytest.raises(InvalidRequest, match="layers: got 3; expected 2, as the drafter"):
        train(config(target, trainset, tmp_path / "run", steps=4, init=str(first), layers=3), quiet)
