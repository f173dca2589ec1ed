"""Small parts of a run alone: no model is loaded, and nothing is trained."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.core import InvalidRequest, ModelError
from paceline.models.dflash.config import read_dflash_config
from paceline.training import card, export, sharded, state, trackers, workers
from paceline.training.anchors import random_for
from paceline.training.config import TrainConfig
from paceline.training.cost import PhaseCosts, Since, layer_weights, target_operations
from paceline.training.data import check_target, without_token
from paceline.training.evaluation import Score, packs_of
from paceline.training.head import Head, likeliest
from paceline.training.losses import Soft, decay_of
from paceline.training.optimizers import Optimizers
from paceline.training.packs import Pick, make_pack
from paceline.training.progress import Progress
from paceline.training.run import check_place, describe, line
from paceline.training.shape import check_fit, drafter_json, reshaped
from paceline.training.target import Seen, TrainingTarget, likely_tokens
from paceline.training.workers import Workers, keep_freed_memory
from tests.engine.tiny import tiny_config
from tests.models.dflash.tiny import config_json
from tests.training.twins import SIZE, random_text, text_of

SETTINGS: dict[str, Any] = {"model": "m", "sets": ("a/set",), "out": "run", "steps": 4}


# -- processes -------------------------------------------------------------------------------------


@pytest.fixture
def of_two(monkeypatch) -> Workers:
    """The second of two processes, without a process group."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(workers.dist, "is_initialized", lambda: True)
    return Workers("cpu")


def test_processes_share_out_texts_in_turn(of_two):
    assert of_two.mine([1, 2, 3, 4, 5]) == [2, 4] and not of_two.first
    assert Workers.mine(SimpleNamespace(rank=0, count=1), [1, 2]) == [1, 2]


def test_texts_that_do_not_share_out_evenly_are_refused(of_two):
    of_two.check(texts=8, micro=4, shard_target=True)
    with pytest.raises(InvalidRequest, match="texts: got 6; expected a multiple of 2 processes"):
        of_two.check(texts=6, micro=1 + 1, shard_target=False)


def test_sums_are_those_of_all_processes(of_two, monkeypatch):
    monkeypatch.setattr(workers.dist, "all_reduce", lambda values: values.mul_(2))
    barriers: list[int] = []
    monkeypatch.setattr(workers.dist, "barrier", lambda: barriers.append(1))
    monkeypatch.setattr(workers.dist, "destroy_process_group", lambda: barriers.append(2))
    assert of_two.sum(torch.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]
    of_two.wait()
    of_two.close()
    assert barriers == [1, 2]


def test_one_process_needs_no_group():
    alone = Workers("cpu")
    values = torch.ones(2)
    assert alone.first and alone.sum(values) is values and alone.mine([1, 2]) == [1, 2]
    form = nn.Linear(1, 1)
    assert alone.wrap(form) is form
    with alone.together(form, last=False):
        alone.wait()
    alone.close()


@pytest.mark.parametrize("reason", ["platform", "library"])
def test_another_c_library_has_no_switch(reason, monkeypatch):
    if reason == "platform":
        monkeypatch.setattr(sys, "platform", "darwin")
    else:
        monkeypatch.setattr(workers.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert keep_freed_memory() is False


# -- packs, head, target ---------------------------------------------------------------------------


def test_a_pack_moves_with_all_of_its_tensors():
    pick = Pick(random_text(20, 4, 256), torch.tensor([5, 9]))
    soft = Soft(torch.zeros(2, SIZE - 1, 1, dtype=torch.int64), torch.ones(2, SIZE - 1, 1))
    pack = make_pack([pick], [torch.ones(20, 8)], SIZE, 250, soft)
    assert pack.to("cpu") is pack
    moved = pack.to("meta")
    tensors = ("features", "tokens", "anchors", "ids", "labels", "counts", "before")
    assert all(getattr(moved, name).is_meta for name in tensors)
    assert moved.soft is not None and moved.soft.rows.is_meta and moved.context == pack.context
    assert replace(pack, soft=None).to("meta").soft is None


def test_packs_of_an_evaluation_hold_a_few_texts_each():
    texts = [random_text(40, 5, 256, number) for number in range(5)]
    packs = list(packs_of(texts, 4, lambda text: torch.ones(len(text), 8), SIZE, 250, micro=2))
    assert [len(pack.blocks) for pack in packs] == [2, 2, 1]
    for pack in packs:
        for first, last in pack.blocks:
            steps = pack.anchors[first:last].diff()
            assert last - first == 4 and bool((steps == 1).all())


def test_the_likeliest_tokens_do_not_depend_on_chunks(monkeypatch):
    config = read_dflash_config(config_json())
    hidden, weight = torch.randn(7, SIZE - 1, 64), torch.randn(30, 64)
    head = Head.of(weight, torch.arange(0, 60, 2), 256)
    whole = likeliest(config, hidden, head, 3)
    monkeypatch.setattr("paceline.training.head.CHUNK_BYTES", 4 * (SIZE - 1) * 30 * 2)
    assert torch.equal(likeliest(config, hidden, head, 3), whole)
    assert torch.equal(whole[..., 0], (hidden @ weight.T).argmax(-1))
    assert head.row_of[58] == 29 and head.row_of[59] == -1


def test_likely_tokens_keep_their_share_of_the_whole_distribution():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    tokens, shares = likely_tokens(logits, 2)
    assert tokens.tolist() == [[1, 2]]
    assert torch.allclose(shares.float(), logits.softmax(-1)[:, [1, 2]], atol=1e-3)


def test_what_the_target_would_say_lies_one_place_before():
    likely = torch.arange(5, dtype=torch.int32)[:, None]
    seen = Seen(torch.ones(5, 4), likely, torch.ones(5, 1, dtype=torch.float16))
    tokens, shares = seen.behind(torch.tensor([1, 3]), 3)
    assert tokens[..., 0].tolist() == [[1, 2, 3], [3, 4, 4]]  # the end is repeated, and not counted
    assert shares.shape == (2, 3, 1)
    assert seen.bytes == 5 * 4 * 4 + 5 * 4 + 5 * 2


class CountedTarget(TrainingTarget):
    """A target whose features take 4 bytes a token."""

    def _compute(self, text):
        return Seen(torch.zeros(len(text), 1))


def test_preferred_texts_keep_their_room():
    short, long = random_text(10, 2, 256, 0), random_text(20, 2, 256, 1)
    target = CountedTarget(tiny_config(), [0], budget=4 * 20)
    target.prefer([long])
    target.read(short)  # fits the budget, which is reserved
    target.read(long)
    target.read(long)
    target.read(short)
    assert target.computed_tokens == 10 + 20 + 10
    assert target.features(long).shape == (20, 1)


# -- settings, optimizers, costs -------------------------------------------------------------------


def test_muon_takes_matrices_and_adamw_the_rest():
    module = nn.Module()
    module.matrix = nn.Parameter(torch.ones(4, 4))
    module.codebook = nn.Parameter(torch.ones(4, 4))
    module.norm = nn.Parameter(torch.ones(4))
    optimizers = Optimizers(module, TrainConfig(**SETTINGS, matrix_lr=0.1, lr=0.2))
    muon, adamw = optimizers._parts
    assert [len(group["params"]) for group in muon.param_groups] == [1]
    assert [len(group["params"]) for group in adamw.param_groups] == [2]
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(0.5)
    assert muon.param_groups[0]["lr"] == 0.05 and adamw.param_groups[0]["lr"] == 0.1
    assert all(parameter.grad is None for parameter in module.parameters())
    again = Optimizers(module, TrainConfig(**SETTINGS, matrix_lr=0.1, lr=0.2))
    again.load(optimizers.state())
    assert str(again.state()[1]["state"]) == str(optimizers.state()[1]["state"])


def test_sums_of_the_log_are_means_of_steps_and_totals_of_the_run():
    since = Since(all_slots=100.0, all_seconds=3600.0)
    for loss in (1.0, 3.0):
        since.add(2.0, loss=loss, al=2.0, grad_norm=1.0, lr_share=0.5, slots=8.0, blocks=4.0)
    numbers = since.numbers()
    assert numbers["loss"] == 2.0 and numbers["seconds_per_step"] == 2.0
    assert numbers["slots_per_second"] == 4.0 and numbers["blocks_per_second"] == 2.0
    assert numbers["slots"] == 116.0 and numbers["hours"] == pytest.approx(3604 / 3600)


def test_phases_add_up_time_and_operations():
    costs = PhaseCosts()
    for _ in range(2):
        with costs.phase("data", operations=3.0):
            pass
    assert costs.operations["data"] == 6.0 and costs.seconds["data"] >= 0
    assert "peak_share/all" not in PhaseCosts().numbers(1.0, 1)
    shape = tiny_config()
    assert target_operations(shape, 2) == 4.0 * shape.num_layers * layer_weights(shape)


def test_decays_are_the_published_ones_or_half_a_block():
    assert [decay_of(size) for size in (8, 10, 16, 6, 20)] == [4.0, 5.0, 7.0, 3.0, 10.0]


def test_a_draw_depends_on_seed_epoch_and_text():
    draws = {
        tuple(random_for(*key).integers(1000, size=4))
        for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    }
    assert len(draws) == 4
    assert random_for(0, 1, 2).integers(1000) == random_for(0, 1, 2).integers(1000)


# -- the shape of a drafter ------------------------------------------------------------------------


def test_a_new_drafter_has_the_width_of_its_target():
    target = tiny_config()
    config = TrainConfig(**SETTINGS, taps=1, window=32, generation="dflash2", selector_rank=12)
    made = drafter_json(config, target, 250)
    assert made["sliding_window"] == 32 and set(made["layer_types"]) == {"sliding_attention"}
    assert made["dflash_config"]["selector_rank"] == 12
    shape = read_dflash_config(made)
    assert shape.layers.hidden_size == target.hidden_size and shape.block_size == 8
    check_fit(shape, target, eos_ids=(3,), seen=(4, 5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 128, "intermediate_size": 96}, "init: got 'hidden_size 128'"),
        ({"vocab_size": 300}, "init: got 'vocab_size 300'; expected a drafter for vocab_size 256"),
        ({"target_layers": 9}, "init: got 'num_target_layers 9'"),
        ({"taps": (1,)}, r"init: got 'target_layer_ids \(1,\)'; expected layers 0 to 0"),
    ],
    ids=str,
)
def test_a_drafter_for_another_target_is_refused(changes, message):
    shape = read_dflash_config(config_json(**changes))
    with pytest.raises(InvalidRequest, match=message):
        check_fit(shape, tiny_config(), eos_ids=(3,), seen=())


def checkpoint_of(json_: dict[str, Any]) -> Any:
    shape = read_dflash_config(json_)
    return SimpleNamespace(config=shape, config_json=json_, path=SimpleNamespace(name="begin"))


def test_a_drafter_gone_on_from_may_get_another_block_and_nothing_else():
    checkpoint = checkpoint_of(config_json(second=True))
    checkpoint.config_json["dflash_config"]["block_size"] = 6
    made = reshaped(TrainConfig(**SETTINGS, block=9), checkpoint)
    assert made["block_size"] == 9 and "block_size" not in made["dflash_config"]
    assert reshaped(TrainConfig(**SETTINGS), checkpoint)["dflash_config"]["block_size"] == 6
    for changes, message in (
        ({"taps": 2}, "taps: got 2; expected 1, as the drafter begin has it"),
        ({"window": 8}, "window: got 8; expected None"),
        ({"mask_token": 7}, "mask_token: got 7; expected 250"),
        ({"generation": "dflash"}, "generation: got 'dflash'; expected dflash2"),
        ({"selector_rank": 9}, "selector_rank: got 9; expected 12"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            reshaped(TrainConfig(**SETTINGS, **changes), checkpoint)


# -- progress, lines, card -------------------------------------------------------------------------


def scored(length: float) -> Score:
    return Score(10, length, (length - 1,))


def test_a_line_of_the_log_is_told_to_people():
    progress = Progress(0.05, judged=True)
    progress.add(0, {"own": scored(2.0)}, {"far": scored(1.5)})
    progress.add(4, {"own": scored(1.8)}, {"far": scored(1.2)})
    told = line({"step": 4, **progress.numbers()})
    assert told == (
        "step 4, held_out/own AL 1.800, out_of_domain/far AL 1.200, REGRESSION regression/far -20%"
    )
    numbers = {"step": 5.0, "loss": 1.25, "train/al": 2.0, "slots_per_second": 99.6}
    told = line(numbers | {"peak_share/all": 0.5})
    assert told == "step 5: loss 1.250, train AL 2.000, 100 slots/s, 50% of the matmul peak"
    assert Progress.from_json(progress.as_json()) == progress


def test_a_run_is_described_in_one_line():
    shape = read_dflash_config(config_json())
    form = SimpleNamespace(
        drafter=nn.Linear(1000, 1000, bias=False), config=shape, head=SimpleNamespace(weight="abc")
    )
    trainer: Any = SimpleNamespace(
        config=TrainConfig(**SETTINGS),
        form=form,
        texts=[text_of([1, 2, 3], ".xx")],
        step=2,
        total=4,
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
        "held_out": {"s": scored(2.5).as_json()}, "out_of_domain": {"far": scored(1.2).as_json()},
    },
    "before": {
        "held_out": {"s": scored(2.0).as_json()}, "out_of_domain": {"far": scored(1.5).as_json()},
    },
    "regressions": {"far": 0.2},
}  # fmt: skip


def test_a_card_tells_where_a_drafter_comes_from_and_what_got_worse():
    text = card.card(PROVENANCE, "| served |")
    assert "Trained from the drafter `begin` for 40 steps" in " ".join(text.split())
    assert "0.1 ce, 0.9 tv" in text and "It drafts 7 tokens at a time" in text
    assert "| s | yes | 7 | yes | `dddddddddddd` |" in text
    assert "| s (held out) | 2.00 | 2.50 | 150% |" in text
    assert "**far fell by 20% against the drafter it started from.**" in text
    assert text.rstrip().endswith("## Served\n\n| served |")
    fresh = card.card(PROVENANCE | {"init": None, "before": None, "regressions": {}})
    assert "Trained from random weights" in fresh and "| s (held out) |  | 2.50 |" in fresh


def test_an_evaluation_needs_a_provenance_to_go_into(tmp_path):
    with pytest.raises(InvalidRequest, match=r"card: .* a drafter's folder with a readable"):
        card.add_evaluation(tmp_path, "table", {})


def test_the_past_of_a_drafter_without_a_provenance_is_its_name(tmp_path):
    (tmp_path / "begin").mkdir()
    assert export.history(tmp_path / "begin") == {"name": "begin", "made": None}


# -- folders and packages --------------------------------------------------------------------------


def test_a_state_of_another_format_is_refused(tmp_path):
    state.save_state(tmp_path, {"config": {}, "inputs": {}})
    assert state.load_state(tmp_path, {}, {}) is not None
    torch.save({"format": 0}, tmp_path / state.STATE)
    with pytest.raises(InvalidRequest, match="a run that this version of Paceline wrote"):
        state.load_state(tmp_path, {}, {})


def test_a_setting_that_changes_nothing_computed_may_change(tmp_path):
    first = TrainConfig(**SETTINGS)
    state.save_state(tmp_path, {"config": first.as_json(), "inputs": {}})
    later = TrainConfig(**SETTINGS | {"out": "moved"}, threads=2, save_every=7, features_gb=1.0)
    assert state.load_state(tmp_path, later.as_json(), {}) is not None
    with pytest.raises(InvalidRequest, match="seed: got 1; expected 0, as the run"):
        state.load_state(tmp_path, TrainConfig(**SETTINGS, seed=1).as_json(), {})


def test_a_tracker_that_is_missing_is_refused_with_the_rest_of_the_place(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    config = TrainConfig(**SETTINGS | {"out": str(tmp_path / "new")}, trackers=("mlflow",))
    with pytest.raises(InvalidRequest, match="trackers: got 'mlflow'; expected an installed"):
        check_place(config)
    check_place(TrainConfig(**SETTINGS | {"out": str(tmp_path / "new")}))


def test_tensorboard_gets_scalars_and_goes_on_at_the_step(tmp_path, monkeypatch):
    calls: list[tuple[Any, ...]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            calls.append((folder, purge_step))

        def __getattr__(self, name: str) -> Any:
            return lambda *values: calls.append((name, *values))

    for module in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(SummaryWriter=Writer))
    _, board = trackers.open_trackers(("tensorboard",), tmp_path, {"lr": 0.1}, 5)
    board.log(6, {"loss": 2.0})
    board.close()
    assert calls[0] == (str(tmp_path / "tensorboard"), 5)
    assert ("add_scalar", "loss", 2.0, 6) in calls and ("close",) in calls


def test_a_set_says_what_it_was_made_with(tmp_path):
    manifest = SimpleNamespace(target={"name": "other", "template": "0" * 16})
    same = {"tokenizer_sha256": "a", "template": "0" * 16, "weights_sha256": "b"}
    check_target({"set": manifest}, same)  # what a set does not say is not compared
    with pytest.raises(InvalidRequest, match=r"chat template \(template 11111.*made with other"):
        check_target({"set": manifest}, same | {"template": "1" * 16})


def test_texts_with_a_token_are_left_out():
    texts = [text_of([1, 2, 3], "xxx"), text_of([4, 2], "xx", 1), text_of([3, 3], "xx", 2)]
    assert [text.number for text in without_token(texts, 2)] == [2]


@pytest.mark.parametrize(
    ("architectures", "message"),
    [([], "knows no architecture none named"), (["LlamaForCausalLM"], "cannot load it")],
)
def test_a_target_that_transformers_cannot_load_is_refused(architectures, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": architectures}))
    loaded: Any = SimpleNamespace(path=tmp_path, name="tiny")
    with pytest.raises(ModelError, match=f"tiny: transformers {message}"):
        sharded._load(loaded, torch.float32)
