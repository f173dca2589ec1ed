"""What a run learns, and what it leaves."""

from __future__ import annotations

import json

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.core import InvalidRequest
from paceline.dataset.run_log import read_log
from paceline.dataset.training_set import read_rows
from paceline.evaluate.doctor import examine
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.models.dflash.tensors import PREDECESSORS
from paceline.training.export import add_evaluation
from paceline.training.run import prepare
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers
from tests.models.dflash.tiny import authors_model
from tests.training.conftest import PROMPTS
from tests.training.runs import config, drafter_of, learn_by_heart, lengths, losses


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"generation": "dflash2"}, marks=pytest.mark.slow),
        {"generation": "dflash2", "labels": "target", "mix": {"ce": 0.5, "kl": 0.5}},
        pytest.param(
            {"labels": "target", "mix": {"expected_matches": 1.0, "expected_al": 0.5, "kl": 0.1}},
            marks=pytest.mark.slow,
        ),
        {
            "labels": "target",
            "mix": {"expected_speedup": 0.5, "ce": 1.0},
            "round_costs": (1.1, 1.12, 1.14, 1.16, 1.18),
        },
        {"optimizer": "muon"},
    ],
    ids=str,
)
def test_one_batch_is_learnt_by_heart(options, target, trainset, tmp_path):
    """Acceptance length becomes the block's size: nothing is missing between text and slot."""
    rich = config(
        target, trainset, tmp_path, steps=300, anchors=40, texts=2, weights="uniform", **options
    )
    right, counts = learn_by_heart(rich)
    assert torch.equal(right, counts)  # at a text's end a block has fewer slots
    whole = counts.all(1)
    assert whole.sum() > 50
    assert (1 + right[whole].cumprod(1).sum(1)).float().mean() == rich.block


def test_a_run_learns_and_leaves_a_drafter_that_serves(target, trainset, tmp_path):
    out = tmp_path / "run"
    drafter = drafter_of(config(target, trainset, out, steps=60, anchors=32))
    curve = lengths(out)
    assert max(curve) > curve[0] + 0.3, curve
    log = read_log(out)
    left = [row["hours_left"] for row in log if "hours_left" in row]
    assert left[0] > left[-1] == 0
    last = log[-1]
    shares = [last[f"held_out/tiny-set/position_{place}"] for place in range(2, 6)]
    assert 1 + last["held_out/tiny-set/first"] + sum(shares) == pytest.approx(curve[-1])
    llm = LLM(str(target), f"mine={drafter}", dtype="float32", backend="torch", threads=1)
    greedy = SamplingParams(temperature=0, max_tokens=40)
    served = llm.generate(PROMPTS[:16], greedy, {"drafter": "mine"})
    plain = llm.generate(PROMPTS[:16], greedy, "off")
    assert [r.token_ids for r in served] == [r.token_ids for r in plain]
    accepted = sum(r.stats.accepted_tokens for r in served)
    rounds = sum(r.stats.draft_rounds for r in served)
    assert 1 + accepted / rounds > 1.3
    assert authors_model(drafter).config.block_size == 6  # the DFlash authors' package reads it too


def test_every_drafter_that_is_written_passes_the_doctor(target, trainset, tmp_path):
    options = {
        "generation": "dflash2",
        "selector_rank": 8,
        "window": 16,
        "block": 5,
        "head_tokens": 200,
    }
    drafter = drafter_of(config(target, trainset, tmp_path / "run", steps=60, **options))
    conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[:6]]
    fixed = {"dtype": "float32", "backend": "torch", "threads": 1}
    report = examine(str(target), str(drafter), conversations, 40, **fixed)
    assert report.healthy, report.verdict


def test_a_selector_says_nothing_of_tokens_that_no_text_holds(target, trainset, tmp_path):
    options = {"generation": "dflash2", "selector_rank": 8, "eval_every": 8}
    drafter = drafter_of(config(target, trainset, tmp_path / "run", steps=8, **options))
    moved = load_checkpoint(drafter).weights[PREDECESSORS].any(dim=1)
    held = {token for row in read_rows(trainset, "train") for token in row.ids}
    assert not moved[[token for token in range(256) if token not in held]].any()
    assert 0 < int(moved.sum()) <= len(held)


def test_what_is_kept_is_the_best_and_says_what_made_it(target, trainset, tmp_path):
    out = tmp_path / "run"
    drafter = drafter_of(config(target, trainset, out, steps=12))
    made = json.loads((drafter / "provenance.json").read_text())
    best = max(lengths(out)[1:])
    assert made["scores"]["held_out"]["tiny-set"]["length"] == pytest.approx(best, abs=1e-4)
    assert made["target"]["name"] == "tiny" and len(made["target"]["weights_sha256"]) == 64
    assert made["data"]["tiny-set"]["trained_on"] is True
    assert made["data"]["tiny-set"]["app"] == "tiny"
    assert made["settings"]["mix"] == {"ce": 1.0}
    text = (drafter / "README.md").read_text()
    assert made["target"]["weights_sha256"] in text and "| tiny-set (held out) |" in text
    for folder in (str(target), str(trainset), str(tmp_path)):
        assert folder not in text + json.dumps(made)
    assert load_checkpoint(drafter).provenance.target == "tiny"


def test_an_evaluation_goes_into_card_and_provenance(target, trainset, tmp_path):
    drafter = drafter_of(config(target, trainset, tmp_path / "run", steps=4))
    add_evaluation(drafter, "| set | AL |", {"format": "paceline-evaluation/1", "results": []})
    assert "## Served\n\n| set | AL |" in (drafter / "README.md").read_text()
    made = json.loads((drafter / "provenance.json").read_text())
    assert made["evaluation"] == {"format": "paceline-evaluation/1", "results": []}
    load_checkpoint(drafter)  # its digest is that of config and weights
    with pytest.raises(InvalidRequest, match="readable provenance"):
        add_evaluation(tmp_path, "", {})


def test_the_first_part_of_a_run_may_take_short_blocks(target, trainset, tmp_path):
    settings = config(target, trainset, tmp_path, steps=10, short_block=3, short_share=0.2)
    trainer = prepare(settings, Workers("cpu"))
    sizes = []
    whole = prepare(config(target, trainset, tmp_path, steps=10), Workers("cpu"))
    assert whole._block_size() == 6
    for trainer.step in range(10):
        picks = trainer.order.step(trainer.step)
        sizes.append(trainer._pack(picks, trainer._block_size()).ids.shape[1])
    assert sizes == [3] * 2 + [6] * 8


def test_labels_of_the_target_are_the_text_where_it_is_greedy(target, trainset, tmp_path):
    trainer = prepare(
        config(target, trainset, tmp_path, steps=1, labels="target", mix={"kl": 1.0}),
        Workers("cpu"),
    )
    picks = trainer.order.step(0)
    pack = trainer._pack(picks, 6)
    text = torch.cat([pick.text.ids[pick.anchors + 1] for pick in picks])
    assert (pack.labels[:, 0] == text).float().mean() > 0.99
    assert pack.soft is not None
    likeliest = trainer.form.head.ids[pack.soft.rows[..., 0]]
    assert (likeliest == pack.labels)[pack.counts].all()


def test_a_step_is_the_same_however_its_texts_are_grouped(target, trainset, tmp_path, monkeypatch):
    """Up to rounding: gradients of the groups are added in another order."""
    packs: list[int] = []
    whole = Trainer._pack

    def counted(trainer, picks, size):
        packs.append(len(picks))
        return whole(trainer, picks, size)

    monkeypatch.setattr(Trainer, "_pack", counted)
    drafter_of(config(target, trainset, tmp_path / "a", steps=12))
    assert set(packs) == {2} and len(packs) == 24
    packs.clear()
    drafter_of(config(target, trainset, tmp_path / "b", steps=12, micro_tokens=40))
    assert set(packs) == {1}
    packs.clear()
    drafter_of(config(target, trainset, tmp_path / "c", steps=12, micro=4, micro_tokens=500))
    assert max(packs) > 2 and len(packs) < 24
    first = losses(tmp_path / "a")
    assert len(first) > 1
    assert losses(tmp_path / "b") == pytest.approx(first, rel=1e-4)
    assert losses(tmp_path / "c") == pytest.approx(first, rel=1e-4)
