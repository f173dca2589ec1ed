"""What a run tells of itself: lines, the card of its drafter, and its past."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.core import InvalidRequest
from paceline.dataset.training_set import read_manifest, read_rows, write_manifest, write_shard
from paceline.models.dflash.config import read_dflash_config
from paceline.models.dflash.tensors import PREDECESSORS
from paceline.training import export
from paceline.training.config import TrainConfig
from paceline.training.evaluation import Progress, Score
from paceline.training.provenance import as_text, read, shortened
from paceline.training.run import describe, prepare
from paceline.training.telling import line
from paceline.training.workers import Workers
from tests.models.dflash.tiny import config_json
from tests.training.runs import SMALL, config
from tests.training.twins import text_of


def scored(length: float) -> Score:
    return Score(10, length, (length - 1,))


def test_a_line_of_the_log_is_told_to_people():
    progress = Progress(0.05, judged=True)
    progress.add(0, {"own": scored(2.0)}, {"far": scored(1.5)})
    progress.add(4, {"own": scored(1.8)}, {"far": scored(1.2)})
    told = line(4, progress.numbers())
    assert told == (
        "step 4, held_out/own AL 1.800, out_of_domain/far AL 1.200, REGRESSION regression/far -20%"
    )
    progress.add(6, {"own": scored(2.0)}, {"far": scored(1.5)}, {"own": scored(1.7)})
    assert line(6, progress.numbers()) == (
        "step 6, held_out/own AL 2.000, foreign/own AL 1.700, out_of_domain/far AL 1.500, "
        "production gap/own 0.30"
    )
    numbers = {"loss": 1.25, "train/al": 2.0, "slots_per_second": 99.6}
    told = line(5, numbers | {"peak_share/all": 0.5, "hours_left": 1.51})
    assert told == (
        "step 5: loss 1.250, train AL 2.000, 100 slots/s, 50% of the matmul peak, 1:30:36 h left"
    )
    assert Progress(**asdict(progress)) == progress


def test_a_run_is_described_in_one_line():
    shape = read_dflash_config(config_json())
    form = SimpleNamespace(
        drafter=nn.Linear(1000, 1000, bias=False), config=shape, head=SimpleNamespace(weight="abc")
    )
    trainer: Any = SimpleNamespace(
        config=TrainConfig(**SMALL),
        form=form,
        data=SimpleNamespace(train=[text_of([1, 2, 3], ".xx")]),
        step=2,
        schedule=SimpleNamespace(ends="4 steps"),
    )
    told = describe(trainer, resumed=False)
    assert told.startswith("training 4 steps: DFlash, 2 layers, block 6, 1.0 M weights, head of 3")
    assert "1 texts with 2 tokens said, 8 texts x 32 blocks a step" in told
    assert describe(trainer, resumed=True).startswith("going on at step 2 of 4 steps")


PROVENANCE: dict[str, Any] = {
    "target": {"name": "t", "weights_sha256": "f" * 64},
    "generation": "dflash",
    "weights": 2_000_000,
    "shape": {"block": 8, "layers": 3, "target_layer_ids": [1, 2], "head_tokens": 99},
    "init": {"name": "begin", "made": None},
    "data": {"s": {"digest": "d" * 64, "trained_on": True, "tokens": 7, "user_data": True}},
    "settings": {
        "texts": 8, "anchors": 32, "mix": {"ce": 0.1, "tv": 0.9}, "weights": "dpace",
        "optimizer": "muon", "seed": 0,
    },
    "step": 40,
    "scores": {
        "held_out": {"s": asdict(scored(2.5))}, "out_of_domain": {"far": asdict(scored(1.2))},
    },
    "before": {
        "held_out": {"s": asdict(scored(2.0))}, "out_of_domain": {"far": asdict(scored(1.5))},
    },
    "regressions": {"far": 0.2},
}  # fmt: skip


def test_a_card_tells_where_a_drafter_comes_from_and_what_got_worse():
    text = export.card(PROVENANCE, "| served |")
    assert "Trained from the drafter `begin` for 40 steps" in " ".join(text.split())
    assert "0.1 ce, 0.9 tv" in text and "It drafts 7 tokens at a time" in text
    assert "| s | yes | 7 | yes | `dddddddddddd` |" in text
    assert "| s (held out) | 2.00 | 2.50 | 150% |" in text
    assert "**far fell by 20% against the drafter it started from.**" in text
    assert text.rstrip().endswith("## Served\n\n| served |")
    assert "foreign" not in text  # runs from before there were foreign prompts
    scores = PROVENANCE["scores"] | {"foreign": {"s": asdict(scored(2.2))}}
    overlap = {"held_out": {"rows": 9, "prompts": 0.25, "answers": 0.5, "answers_over_half": 4}}
    data = {"s": PROVENANCE["data"]["s"] | {"overlap": overlap}}
    newer = export.card(PROVENANCE | {"scores": scores, "data": data})
    assert "| s (foreign) |  | 2.20 | 120% |" in newer
    assert "The production gap of s is 0.30: AL on held-out prompts minus" in newer
    assert "held_out of s: training has 25% of the 3-grams of its prompts and 50% of" in newer
    fresh = export.card(PROVENANCE | {"init": None, "before": None, "regressions": {}})
    assert "Trained from random weights" in fresh and "| s (held out) |  | 2.50 |" in fresh
    assert "it was trained on has 700 tokens" in export.card(PROVENANCE | {"context": 700})
    assert "it was trained on has" not in text, "earlier releases did not say how long texts were"
    named = PROVENANCE["target"] | {"name": "smollm2-135m"}
    public = export.card(PROVENANCE | {"target": named})
    assert public.startswith("---\nbase_model: HuggingFaceTB/SmolLM2-135M-Instruct\n")
    assert text.startswith("---\nbase_model: t\n"), "the hub is told the only name there is"


OLD: dict[str, Any] = {  # what earlier releases wrote, in short
    **PROVENANCE,
    "format": "paceline-drafter/1",
    "init": {
        "name": "begin",
        "made": {"init": None, "step": 9,
                 "settings": {"texts": 8, "lr": None, "threads": 4, "target_options": {}},
                 "data": {"s": {"digest": "d", "sources": [{"name": "n", "licence": "MIT"}]}}},
    },
    "evaluation": {
        "date": "2026-11-22",
        "results": [{
            "set": "s", "role": "on task", "temperature": 0.0, "requests": 8, "bound": 0,
            "acceptance": {"drafter": {"al": 2.03959, "positions": [1, 2, 3]}},
            "speed": {"drafter/full": {"speedup": 1.51234, "tpot_ms": 4.7}},
        }],
    },
}  # fmt: skip


def test_a_provenance_is_a_manifest_whatever_wrote_it(tmp_path):
    (tmp_path / "provenance.json").write_text(json.dumps(OLD))
    record = read(tmp_path, "init", "a drafter")
    made = record["init"]["made"]
    assert made["data"] == {"s": {"digest": "d", "licences": ["MIT"]}}
    assert made["settings"] == {"texts": 8} and record["settings"] == PROVENANCE["settings"]
    (result,) = record["evaluation"]["results"]
    assert result == {
        "set": "s", "role": "on task", "temperature": 0.0, "requests": 8,
        "al": {"drafter": 2.0396}, "speedup": {"drafter/full": 1.5123},
    }  # fmt: skip
    assert json.loads(as_text(record)) == record and shortened(record) == record
    assert all(len(line) <= 100 for line in as_text(record).splitlines())
    assert export.history(tmp_path)["made"]["init"] == record["init"]


def test_rows_that_never_moved_are_zero_where_a_drafter_is_written():
    start = torch.randn(6, 3)
    trained = start.clone()
    trained[[1, 4]] += 0.1
    drafter = SimpleNamespace(state_dict=lambda: {PREDECESSORS: trained, "norm": torch.ones(2)})
    form: Any = SimpleNamespace(drafter=drafter)
    for known, moved in ((start, [1, 4]), (None, range(6))):
        made: Any = SimpleNamespace(predecessors=known)
        written = export.weights(made, form)
        assert written[PREDECESSORS].any(dim=1).nonzero()[:, 0].tolist() == list(moved)
        assert torch.equal(written[PREDECESSORS][[1, 4]], trained[[1, 4]])
        assert torch.equal(written["norm"], torch.ones(2))
    assert trained.all(), "training goes on with the rows as they were"


def test_an_evaluation_needs_a_provenance_to_go_into(tmp_path):
    with pytest.raises(InvalidRequest, match=r"card: .* a drafter's folder with a readable"):
        export.add_evaluation(tmp_path, "table", {})


def test_the_past_of_a_drafter_without_a_provenance_is_its_name(tmp_path):
    (tmp_path / "begin").mkdir()
    assert export.history(tmp_path / "begin") == {"name": "begin", "made": None}


def test_the_texts_that_are_not_judged_are_told_and_kept_on_record(target, trainset, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    shards = [write_shard(other, "train", 0, list(read_rows(trainset, "held_out"))[:1])]
    write_manifest(other, read_manifest(trainset).model_copy(update={"shards": shards}))
    both = replace(
        config(target, trainset, tmp_path / "run", steps=1), sets=(str(trainset), str(other))
    )
    said: list[str] = []
    trainer = prepare(both, Workers("cpu"), said.append)
    assert said == ["tiny-set: left out 1 of 4 texts of its held_out split, whose prompts another "
                    "set trains on"]  # fmt: skip
    trainer.progress.add(0, {"tiny-set": Score(1, 2.0, (1.0,))}, {})
    made, form = trainer.export.args
    facts: Any = export.provenance(made, form, trainer.progress, 1)["data"]
    assert (facts["tiny-set"]["left_out"], facts["other"]["left_out"]) == (1, 0)
