"""The folder of a run, its trackers, its sets and its target: refused, or gone on with."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.core import InvalidRequest, ModelError
from paceline.distil.config import DistilConfig
from paceline.training import state, trackers
from paceline.training.causal_model import load_causal_model
from paceline.training.config import TrainConfig
from paceline.training.data import check_target, without_token
from paceline.training.run import check_place
from tests.training.runs import SMALL
from tests.training.twins import text_of


def test_a_state_of_another_format_is_refused(tmp_path):
    state.save_state(tmp_path, {"config": {}, "inputs": {}})
    assert state.load_state(tmp_path, {}, {}) is not None
    torch.save({"format": 0}, tmp_path / state.STATE)
    with pytest.raises(InvalidRequest, match="a run that this version of Paceline wrote"):
        state.load_state(tmp_path, {}, {})


def test_a_setting_that_changes_nothing_computed_may_change(tmp_path):
    first = TrainConfig(**SMALL)
    state.save_state(tmp_path, {"config": asdict(first), "inputs": {}})
    later = TrainConfig(**SMALL | {"out": "moved"}, threads=2, save_every=7, features_gb=1.0)
    assert state.load_state(tmp_path, asdict(later), {}) is not None
    with pytest.raises(InvalidRequest, match="seed: got 1; expected 0, as the run"):
        state.load_state(tmp_path, asdict(TrainConfig(**SMALL, seed=1)), {})


def test_a_tracker_that_is_missing_is_refused_with_the_rest_of_the_place(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    config = TrainConfig(**SMALL | {"out": str(tmp_path / "new")}, trackers=("mlflow",))
    with pytest.raises(InvalidRequest, match="trackers: got 'mlflow'; expected an installed"):
        check_place(config)
    check_place(TrainConfig(**SMALL | {"out": str(tmp_path / "new")}))


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
        load_causal_model(loaded, torch.float32, None)


def test_a_run_from_before_a_setting_was_there_goes_on(tmp_path):
    settings = asdict(TrainConfig(**SMALL))
    older = {name: value for name, value in settings.items() if name != "compile"}
    state.save_state(tmp_path, {"config": older, "inputs": {}})
    assert state.load_state(tmp_path, settings, {}) is not None


def test_a_setting_that_a_run_did_not_have_yet_keeps_its_default(tmp_path):
    """The run began with the default, and does not say so."""
    settings = TrainConfig(**SMALL, target_engine="vllm")
    older = {name: v for name, v in asdict(settings).items() if name != "target_options"}
    state.save_state(tmp_path, {"config": older, "inputs": {}})
    assert state.load_state(tmp_path, asdict(settings), {}) is not None
    served = replace(settings, target_options={"quantization": "fp8"})
    told = r"target_options: got {'quantization': 'fp8'}; expected {}, as the run in .* began"
    with pytest.raises(InvalidRequest, match=told):
        state.load_state(tmp_path, asdict(served), {})


def test_a_setting_that_a_distilling_did_not_have_yet_keeps_its_default(tmp_path):
    settings = asdict(DistilConfig(student="m", sets=("a/set",), out="run"))
    older = {name: value for name, value in settings.items() if name != "clip"}
    state.save_state(tmp_path, {"config": older, "inputs": {}})
    assert state.load_state(tmp_path, settings, {}, model=DistilConfig) is not None
    with pytest.raises(InvalidRequest, match=r"clip: got 2\.0; expected 1\.0, as the run"):
        state.load_state(tmp_path, settings | {"clip": 2.0}, {}, model=DistilConfig)


def test_a_run_that_began_with_options_of_init_goes_on_without_them(tmp_path):
    """Without a drafter to go on from they had no effect, and were not refused."""
    begun = asdict(TrainConfig(**SMALL)) | {"on_regression": "stop", "regression": 0.2}
    state.save_state(tmp_path, {"config": begun, "inputs": {}})
    assert state.load_state(tmp_path, asdict(TrainConfig(**SMALL)), {}) is not None
    state.save_state(tmp_path, {"config": begun | {"init": "drafter"}, "inputs": {}})
    with pytest.raises(InvalidRequest, match=r"regression: got 0\.05; expected 0\.2, as the run"):
        state.load_state(tmp_path, asdict(TrainConfig(**SMALL, init="drafter")), {})
