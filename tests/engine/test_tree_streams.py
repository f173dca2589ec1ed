"""Drafts with alternatives change no token, whatever stands of them: every stream is compared with
the same request run alone without speculation, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core import SamplingParams
from paceline.engine import branch_rows, runner
from paceline.engine.costs import Costs
from paceline.engine.engine import Engine
from paceline.engine.step_cost import StepCost
from tests.drafters.watched import SIZES, answers_of_jobs, check_drafts
from tests.drafters.watched import jobs as dflash_jobs
from tests.drafters.watched import make_engine as make_torch_engine
from tests.drafters.watched import run as run_dflash
from tests.engine import test_grammar_streams
from tests.engine.planted_trees import TreePlanter, plant_trees
from tests.engine.test_streams import dflash_truth, expected, jobs, run
from tests.engine.tiny import EngineFactory, byte_tokenizer, save_tiny
from tests.models.dflash.tiny import write_drafter
from tests.models.dflash.trained import train_tiny

NODES = 12


def tree_engine(make_engine: EngineFactory, folder: Path, **options: Any) -> Engine:
    drafter = write_drafter(folder / "drafter", layers=2, block=8)
    return make_engine(f"d={drafter}", **{"draft_tree": NODES} | options)


def watch_branches(engine: Engine) -> list[int]:
    """Return a list that will hold the accepted depth of each branch that stands."""
    kept, keep = [], engine.runner.keep_branch

    def watched(entry, number, accepted):
        kept.append(accepted)
        keep(entry, number, accepted)

    engine.runner.keep_branch = watched
    return kept


def check_tested(engine: Engine, planter: TreePlanter, kept: list[int]) -> None:
    assert planter.planted > 50 and len(kept) > 20 and max(kept) > 3, "hardly a branch stood"
    assert engine.stats().speculation.acceptance_length > 1.5


@pytest.mark.parametrize("together", [1, 6], ids=["alone", "batch-of-6"])
def test_trees_change_no_token(make_engine: EngineFactory, tmp_path: Path, together: int) -> None:
    work = jobs(16)
    truth = expected(make_engine, work)
    engine = tree_engine(make_engine, tmp_path)
    planter = plant_trees(engine, dflash_truth(truth, work))
    kept = watch_branches(engine)
    assert run(engine, work, together=together) == truth
    check_tested(engine, planter, kept)


def test_trees_survive_preemption_and_prefix_hits(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    work = jobs(16, seed=5, longest=110)
    truth = expected(make_engine, work)
    sizes = {"max_model_len": 240, "token_budget": 40, "max_num_seqs": 24, "draft_window": 64}
    whole = tree_engine(make_engine, tmp_path / "whole", **sizes).plan
    memory = whole.kv_bytes - (whole.num_blocks - 15) * 16 * whole.kv_bytes_per_token
    engine = tree_engine(make_engine, tmp_path / "small", **sizes, kv_memory=memory)
    assert engine.plan.num_blocks == 15
    planter = plant_trees(engine, dflash_truth(truth, work))
    kept = watch_branches(engine)
    assert run(engine, work, together=8) == truth
    check_tested(engine, planter, kept)
    assert engine.stats().preemptions > 0 and engine.stats().prefix_hits > 0


def test_trees_change_no_token_under_a_grammar(make_engine: EngineFactory, tmp_path: Path) -> None:
    work = test_grammar_streams.jobs()
    truth = expected(make_engine, work)
    engine = tree_engine(make_engine, tmp_path)
    plant_trees(engine, dflash_truth(truth, work), rate=0.9)
    kept = watch_branches(engine)
    assert run(engine, work, together=4) == truth
    assert len(kept) > 10, "hardly a branch stood"


def test_trees_change_no_token_when_the_cost_chooses(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    work = jobs(16)
    truth = expected(make_engine, work)
    engine = tree_engine(make_engine, tmp_path, draft_policy="throughput")
    # A forward whose rows are nearly free up to a point: trees are made, and cut.
    engine.scheduler.cost = StepCost([1], [1.0])  # nothing is learned from this machine's steps
    engine.drafting.use(Costs(StepCost([1, 12, 64], [1.0, 1.1, 6.0])))
    plant_trees(engine, dflash_truth(truth, work))
    kept = watch_branches(engine)
    assert run(engine, work, together=4) == truth
    assert len(kept) > 10, "hardly a branch stood"


def test_a_drafter_sees_the_rows_that_stand(tmp_path: Path) -> None:
    """What is drafted after a branch stood is what the training form would draft."""
    folder = write_drafter(tmp_path / "drafter", layers=2, block=6)
    work, truth_runs = dflash_jobs(12), answers_of_jobs(12)
    truth = {tuple(p): out for (p, _), out in zip(work, truth_runs, strict=True)}
    engine = make_torch_engine(f"d={folder}", **SIZES | {"token_budget": 60, "draft_tree": NODES})
    planter = plant_trees(engine, truth)
    kept = watch_branches(engine)
    assert run_dflash(engine, work, together=4) == truth_runs
    check_tested(engine, planter, kept)
    check_drafts(planter)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that learnt a little: its first choice is often wrong, and its second right."""
    target = save_tiny(tmp_path_factory.mktemp("target"), blur=0.0)
    return train_tiny(tmp_path_factory.mktemp("drafter"), target, PROMPTS, steps=20)


PROMPTS = ["aaaa", "hello world", "the quick brown", "once upon a", "def main(", "0123456", "lorem"]
GREEDY = [{"logprobs": 1}, {"repetition_penalty": 1.2}, {"frequency_penalty": 0.3}]
SAMPLED = [{"temperature": t, "logprobs": 1} for t in (0.1, 0.2, 0.3, 0.5)]


def jobs_of_prompts(options: list[dict[str, Any]]) -> list[tuple[list[int], SamplingParams]]:
    usual: dict[str, Any] = {"max_tokens": 40, "temperature": 0}
    return [
        (byte_tokenizer().encode(prompt), SamplingParams(**usual | {"seed": seed} | more))
        for more in options
        for seed, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize(
    ("kind", "quantize"),
    [
        pytest.param("dflash", None, id="dflash"),
        pytest.param("hybrid", None, id="hybrid"),
        pytest.param("dflash", "int8", id="dflash-int8"),
        pytest.param("hybrid", "int8", id="hybrid-int8", marks=pytest.mark.slow),
    ],
)
def test_trees_of_a_trained_drafter_change_no_token(
    make_engine: EngineFactory, trained: Path, kind: str, quantize: str | None
) -> None:
    """Check trees whose drafts, chances and shapes are the drafter's own, none of them planted."""
    plain = make_engine(quantize=quantize, prefix_cache=False)
    engine = make_engine(f"d={kind}:{trained}", quantize=quantize, draft_tree=7)
    kept = watch_branches(engine)
    for options in (GREEDY, SAMPLED):
        work, before = jobs_of_prompts(options), len(kept)
        assert run(engine, work, together=4) == run(plain, work, together=1)
        assert len(kept) - before > 2, "hardly a branch stood"
    if kind == "hybrid":
        assert engine.stats().speculation.parts["suffix"].accepted_tokens > 0


def test_control_branches_that_do_not_see_their_ancestors(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the keys and values of the rows before it, a branch is another text."""

    def blind(scheduled, starts):
        rows = branch_rows.branch_rows(scheduled, starts)
        none = np.zeros(0, np.int32)
        return replace(rows, share_starts=np.zeros_like(rows.share_starts), sharers=none)

    check_that_it_matters(make_engine, tmp_path, lambda: patch_rows(monkeypatch, blind))


def test_control_committed_tokens_that_are_not_copied(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(scheduled, starts):
        return replace(branch_rows.branch_rows(scheduled, starts), copies=[])

    check_that_it_matters(make_engine, tmp_path, lambda: patch_rows(monkeypatch, forgetful))


def test_control_a_branch_that_is_not_kept(
    make_engine: EngineFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        monkeypatch.setattr(runner.Runner, "keep_branch", lambda *_: None)

    check_that_it_matters(make_engine, tmp_path, lose)


def patch_rows(monkeypatch: pytest.MonkeyPatch, rows: Any) -> None:
    monkeypatch.setattr(runner, "branch_rows", rows)


def check_that_it_matters(make_engine: EngineFactory, folder: Path, spoil: Any) -> None:
    work = jobs(16)
    truth = expected(make_engine, work)
    engine = tree_engine(make_engine, folder)
    plant_trees(engine, dflash_truth(truth, work))
    spoil()
    assert run(engine, work, together=4) != truth
