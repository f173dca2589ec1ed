"""What is mocked: configs by name and by file; what does not fit, or is unknown, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.mock import setup as mock_setup
from paceline.bench.mock.measure import measure
from paceline.bench.mock.predict import ROOFLINE, predict
from paceline.bench.mock.setup import MockDrafting, build, read_target
from paceline.core import InvalidRequest, ModelError
from paceline.models.mocked import needed_bytes
from paceline.roofline.device import Hardware
from tests.bench.mocks import TINY, TINY_DFLASH, config_file, mocked, of_lengths

DEVICE = Hardware(name="device", memory_bandwidth=1e10, peak={"bf16": 1e11}, memory=1e10)


def test_a_config_that_comes_with_paceline_needs_no_file() -> None:
    target = read_target("qwen3-0.6b")
    assert target.shape.family == "qwen3"
    assert target.shape.num_layers == 28


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    assert read_target(str(path)) == read_target(str(tmp_path))
    assert read_target(str(path)).name == tmp_path.name


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM is not supported"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3; expected a whole number, 1 or more"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; expected a whole number, 1 or more"),
        ({"hidden_size": None}, "hidden_size is None; expected a whole number, 1 or more"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor"),
    ],
)
def test_bad_configs_are_refused_by_name(tmp_path: Path, changes: dict, says: str) -> None:
    path = config_file(tmp_path, **changes)
    with pytest.raises(ModelError) as refused:
        read_target(str(path))
    assert says in str(refused.value)
    assert tmp_path.name in str(refused.value)


def test_a_name_that_nothing_has_is_answered_with_the_names() -> None:
    with pytest.raises(InvalidRequest, match=r"model: got .*Qwen3-8B"):
        read_target("nowhere")


def test_a_file_that_is_no_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]", "utf-8")
    with pytest.raises(ModelError, match="expected a JSON object"):
        read_target(str(tmp_path))


def test_too_large_names_bytes_needed_and_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mock_setup, "free_memory", lambda _: 1_000_000)
    plan = of_lengths(2.0)
    with pytest.raises(InvalidRequest) as refused:
        mocked(tmp_path, plan)
    needed = needed_bytes(read_target(str(config_file(tmp_path))).shape, "bfloat16", plan.tokens)
    assert refused.value.field == "model"
    assert f"{needed} bytes" in str(refused.value) and "1000000 bytes" in str(refused.value)
    monkeypatch.setattr(mock_setup, "free_memory", lambda _: needed)
    mocked(tmp_path, plan)


def test_a_model_of_hundreds_of_gigabytes_is_refused_at_once() -> None:
    target = read_target("Meta-Llama-3.1-70B")
    with pytest.raises(InvalidRequest, match=r"weights and KV need 14\d{10} bytes"):
        build(target, of_lengths(2.0), MockDrafting())


def test_a_cost_and_a_config_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"drafter_cost.*no cost beside"):
        MockDrafting(cost=0.1, config=tmp_path)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ([1], "expected a JSON object"),
        ({"model_type": "qwen3", "text_config": "x"}, "text_config is 'x'; expected an object"),
        ({**TINY, "architectures": 5}, "architectures is 5; expected a list"),
        ({**TINY, "architectures": ["Mamba"]}, "architecture Mamba is not supported"),
        ({**TINY, "model_type": "mamba9"}, "does not know the family 'mamba9'"),
        ({**TINY, "hidden_size": 10**200}, "hidden_size is 1000"),
        ({**TINY_DFLASH, "dflash_config": "x"}, "dflash_config is 'x'"),
    ],
)
def test_a_broken_config_of_a_drafter_is_refused_by_name(
    tmp_path: Path, broken: Any, says: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(broken), "utf-8")
    with pytest.raises(ModelError, match="drafter_config: ") as refused:
        MockDrafting(config=path)
    assert says in str(refused.value)


@pytest.mark.parametrize("kind", ["dflash", "small model"])
def test_a_drafter_of_random_weights_is_paid_for_and_predicted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "drafter").mkdir()
    hf: dict[str, Any] | None = TINY_DFLASH if kind == "dflash" else None
    path = config_file(tmp_path / "drafter", hf)
    drafting = MockDrafting(config=path)
    plan = of_lengths(4.0, steps=8)
    engine = mocked(tmp_path, plan, drafting)
    (found,) = measure(engine, plan)
    assert found.draft_seconds > 0
    assert 1 <= found.al <= 8
    target = read_target(str(config_file(tmp_path)))
    (predicted,) = predict([found], target, drafting, engine, DEVICE)
    assert list(predicted) == [ROOFLINE]
    row = predicted[ROOFLINE].predicted
    assert 0 < row.draft_seconds < row.step_seconds
