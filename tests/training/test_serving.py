"""What training says of a drafter is what the engine makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.models.dflash.checkpoint import load_checkpoint
from paceline.training.evaluation import BlockTally
from paceline.training.packs import Pick, Text, make_pack
from paceline.training.run import prepare
from paceline.training.trainer import Trainer
from paceline.training.workers import Workers
from tests.training import conftest
from tests.training.runs import config, drafter_of

PROMPTS = [*conftest.PROMPTS[:12], "hello there", "qq 77"]


def served(target: Any, drafter: Any, length: int) -> list[Any]:
    """Greedy answers, with a whole block drafted in every round."""
    llm = LLM(
        str(target), f"mine={drafter}", dtype="float32", backend="torch", threads=1,
        draft_policy=f"fixed:{length}",
    )  # fmt: skip
    greedy = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    return llm.generate(PROMPTS, greedy, {"drafter": "mine"})


def judged(trainer: Trainer, results: list[Any]) -> tuple[int, int]:
    """Accepted tokens and rounds of the same answers as training counts them."""
    tally, size = BlockTally(trainer.form.config.block_size - 1), trainer.form.config.block_size
    for number, result in enumerate(results):
        ids = torch.tensor(result.prompt_ids + result.token_ids)
        said = torch.arange(len(ids)) >= len(result.prompt_ids)
        text = Text(10**6 + number, ids, said)
        anchors = torch.arange(len(result.prompt_ids), len(ids) - 1)
        seen = trainer.target.read(text)
        mask = trainer.form.config.mask_token_id
        pack = make_pack([Pick(text, anchors)], [seen], size, mask, trainer.target.window)
        tally.add(trainer.form.right(pack), pack)
    return int(tally.sums[1:].sum()), int(tally.sums[0])


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"window": 9},
        {"generation": "dflash2"},
        pytest.param({"head_tokens": 60}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_engine_accepts_what_training_counted(options, target, trainset, tmp_path):
    """Round for round: features, positions, masks, head and selector are the same in both."""
    settings = config(target, trainset, tmp_path / "run", steps=60, anchors=32, **options)
    drafter = drafter_of(settings)
    trainer = prepare(settings, Workers("cpu"))
    weights = load_checkpoint(drafter).weights  # as they were written, in bfloat16
    trainer.form.drafter.load_state_dict({name: weights[name].float() for name in weights})
    results = served(target, drafter, trainer.form.config.block_size - 1)
    accepted, rounds = judged(trainer, results)
    engine = sum(r.stats.accepted_tokens for r in results)
    drafted = sum(r.stats.draft_rounds for r in results)
    assert accepted > 0.4 * rounds  # a drafter that is right often enough to be wrong about
    # Near its token limit a text's last round drafts less than a block: another block's drafts.
    assert abs(accepted - engine) <= len(results) and abs(rounds - drafted) <= len(results)
    assert accepted / rounds == pytest.approx(engine / drafted, rel=0.05)


def test_the_selector_learns(target, trainset, tmp_path):
    """All three of its tensors move, and its path is another than the likeliest tokens'."""
    settings = config(target, trainset, tmp_path, steps=60, anchors=32, generation="dflash2")
    trainer = prepare(settings, Workers("cpu"))
    selector = trainer.form.drafter.candidate_selector
    before = {name: p.detach().clone() for name, p in selector.named_parameters()}
    assert len(before) == 3 and not before["successor_codebook"].any()
    while trainer.step < 60:
        trainer.take_step()
    for name, parameter in selector.named_parameters():
        assert (parameter - before[name]).abs().max() > 1e-3, name
    pack = trainer._pack(trainer.order.step(0), 6)
    hidden = trainer.form.hidden(pack)
    own = trainer.form.right(pack)
    with torch.no_grad():
        selector.successor_codebook.zero_()
    assert torch.equal(trainer.form.hidden(pack), hidden)
    assert not torch.equal(trainer.form.right(pack), own)
