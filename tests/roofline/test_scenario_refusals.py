"""What a scenario must state, and what is refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline.core import InvalidRequest, PacelineError
from paceline.roofline.architecture import model_config
from paceline.roofline.scenario import predict
from tests.roofline.scenarios import DENSE, DFLASH, EXPERTS, HYBRID, MTP, TINY


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({**EXPERTS, "correlation": "some"}, "correlation: got 'some'; expected one of uniform"),
        ({**EXPERTS, "expert_parallel": 3}, "expert_parallel: got 3; expected a divisor"),
        ({**HYBRID, "snapshots": "often"}, "snapshots: got 'often'; expected one of"),
        ({**HYBRID, "state_precision": "int3"}, "state_precision: got 'int3'; expected one of"),
    ],
)
def test_an_option_that_is_none_is_refused_by_name(stated: dict, said: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        predict(stated)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, "model, hardware, drafters: missing; they are required"),
        ({**DENSE, "drafters": [{"kind": "eagle3"}]}, "or config, acceptance (how well it drafts"),
        ({**DENSE, "hardware": {"name": "x"}}, "memory_bandwidth, hardware.peak, hardware.memory:"),
    ],
)
def test_all_that_is_missing_is_asked_for_at_once(stated: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        predict(stated)
    assert said in str(refused.value)


def test_one_more_request_than_fits_is_refused_by_number() -> None:
    most = predict(DENSE)["capacity"]["max_batch"]
    assert predict({**DENSE, "batch": most})["capacity"]["max_batch"] == most
    with pytest.raises(InvalidRequest, match=f"batch: got {most + 1}; expected at most {most}"):
        predict({**DENSE, "batch": most + 1})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"correlation": "measured"}, "correlation: got 'measured'; expected uniform: Qwen"),
        ({"expert_parallel": 2}, "expert_parallel: got 2; expected 1: Qwen"),
        ({"snapshots": "replay"}, "snapshots: got 'replay'; expected per-token: Qwen"),
        ({"state_precision": "bf16"}, "state_precision: got 'bf16'; expected none: Qwen"),
        ({"data_parallel": 0}, "data_parallel: got 0"),
        ({"speed": 3}, "speed: unknown field; expected one of model, hardware, drafters"),
        ({"model": "gpt-9"}, "model: got 'gpt-9'; expected"),
        ({"model": "/etc/passwd"}, "model: got '/etc/passwd'; expected"),
        ({"model": {"config": {"model_type": "mamba9"}}}, "does not know the family 'mamba9'"),
        ({"model": {"config": {"model_type": "llama"}}}, "hidden_size"),
        ({"model": {"config": {}, "path": "x"}}, "model.path: unknown field; expected one"),
        ({"model": 3}, "model: got 3"),
        ({"hardware": "B9000"}, "hardware: got 'B9000'; expected one of"),
        ({"hardware": {"name": "x"}}, "hardware.peak, hardware.memory: missing; they are"),
        ({"precision": "fp3"}, "precision: got 'fp3'"),
        ({"batch": -1}, "batch: got -1"),
        ({"batch": 4096}, "batch: got 4096; expected at most"),
        ({"batch": 1.5}, "batch: got 1.5"),
        ({"context": -5}, "context: got -5"),
        ({"context": 10**6}, "context: got 1000000; expected a whole number from 0 to 40960"),
        ({"contexts": [10**6]}, "contexts: got 1000000; expected a whole number from 0 to 409"),
        ({"tensor_parallel": 0}, "tensor_parallel: got 0"),
        ({"max_draft": 65}, "max_draft: got 65; expected a draft length, 1 to 64"),
        ({"calibration": "tuned"}, "calibration: got 'tuned'; expected one of ideal"),
        ({"calibration": {"memory_efficiency": 0}}, "calibration.memory_efficiency: got 0"),
        ({"batches": "1,2"}, "batches: got '1,2'; expected a list"),
        ({"drafters": []}, "drafters: got []; expected a list of 1 to 3"),
        ({"drafters": [MTP] * 4}, "drafters: got 4 items; expected up to 3 drafters"),
        ({"drafters": [MTP, MTP]}, "drafters: got ['mtp', 'mtp']; expected a name of its own"),
        ({"drafters": [{**MTP, "kind": "medusa"}]}, "drafters[0].kind: got 'medusa'; expected one"),
        ({"drafters": [{**MTP, "tree": 4}]}, "drafters[0].tree: unknown field; expected"),
        ({"drafters": [{**MTP, "cost": -1}]}, "cost: got -1"),
        ({"drafters": [{**MTP, "block": 4}]}, "drafters[0].block: got 4; expected no block for"),
        ({"drafters": [{**DFLASH, "block": 0}]}, "drafters[0].block: got 0; expected tokens that"),
        ({"drafters": [{**DFLASH, "max_draft": 17}]}, "drafters[0].max_draft: got 17; expected a"),
        ({"drafters": [{**DFLASH, "acceptance": {"al": 9, "draft_length": 20}}]},
         "drafters[0].acceptance.draft_length: got 20; expected drafts of at most 16, its block"),
        ({"drafters": [{**DFLASH, "acceptance": {"conditional": [0.9] * 17}}]},
         "drafters[0].acceptance: got 17"),
        ({"drafters": [{"kind": "mtp", "cost": 0.1}]}, "drafters[0].acceptance: got null"),
        ({"drafters": [{"kind": "mtp", "acceptance": {"alpha": 0.5}}]}, "no draft layer"),
        ({"drafters": [{"kind": "eagle3", "acceptance": {"alpha": 0.5}}]},
         "drafters[0].cost: got null; expected cost"),
        ({"drafters": [{"kind": "ideal", "cost": 0.1}]}, "drafters[0].cost: got 0.1; expected for"),
        ({"drafters": [{"kind": "dflash", "config": TINY, "acceptance": {"alpha": 0.5}}]},
         "hidden_size is 5120; expected the 4096"),
        ({"drafters": [{"kind": "ngram", "seconds": -1, "acceptance": {"alpha": 0.5}}]}, "seconds"),
        ({"drafters": [{**MTP, "checkpoint": 3}]}, "drafters[0].checkpoint: got 3"),
        ({"drafters": [{**MTP, "acceptance": {"first": 0.7, "al": "x", "draft_length": 7}}]},
         "drafters[0].acceptance.al: got 'x'; expected a number"),
        ({"batch": float("nan")}, "scenario: got 'Out of range"),
        ({"drafters": [{"kind": "draft_model", "config": {**TINY, "head_dim": {}},
                        "acceptance": {"alpha": 0.5}}]}, "head_dim"),
        ({"drafters": ["mtp"]}, "drafters[0]: got 'mtp'; expected an object"),
        ({"drafters": [{**MTP, "name": ""}]}, "drafters[0].name: got ''"),
    ],
)  # fmt: skip
def test_what_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PacelineError) as error:
        predict({**DENSE, **change})
    assert said in str(error.value)


@pytest.mark.parametrize("key", ["model", "hardware", "drafters"])
def test_what_must_be_stated(key: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{key}: missing; it is required"):
        predict({name: value for name, value in DENSE.items() if name != key})


def test_a_config_with_values_of_the_wrong_kind_is_an_error_by_name() -> None:
    config = {**model_config("Qwen3-8B"), "num_attention_heads": "many"}
    with pytest.raises(PacelineError, match="num_attention_heads"):
        predict({**DENSE, "model": {"config": config}})


def test_a_config_of_endless_layers_keeps_nobody_busy() -> None:
    config = {**model_config("Qwen3-8B"), "num_hidden_layers": 10**9}
    with pytest.raises(InvalidRequest, match="num_hidden_layers: got 1000000000"):
        predict({**DENSE, "model": {"config": config}})
