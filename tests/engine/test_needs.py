"""What does not fit the memory is refused before a weight is read, with what would fit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.core import InvalidRequest, PacelineError
from paceline.engine import needs as room
from paceline.engine.config import EngineConfig
from paceline.engine.needs import check_fits, needs_of
from paceline.models.loader import load_folder
from paceline.models.networks import build_network, network_bytes
from tests.engine.sparse import LARGE, save_sparse
from tests.engine.tiny import save_tiny

GIB = 2**30


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set how much memory is free, and how much there is."""

    def set_to(free: float, whole: float) -> None:
        monkeypatch.setattr(room, "free_memory", lambda device: int(free * GIB))
        monkeypatch.setattr(room, "whole_memory", lambda device: int(whole * GIB))

    return set_to


@pytest.mark.parametrize("shards", [1, 3])
def test_a_model_larger_than_the_memory_ends_in_one_error_at_once(
    shards: int, tmp_path: Path, memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_sparse(tmp_path / "large", shards, **LARGE)
    memory(22, 23)
    start = time.monotonic()
    assert main(["generate", "-m", str(folder), "Hi", "--drafter", "none"]) == 2
    assert time.monotonic() - start < 20  # reading 36 GiB takes longer
    told = capsys.readouterr().err
    assert "Traceback" not in told and len(told.splitlines()) == 3
    assert "large does not fit the memory: it needs 3" in told
    assert "22.00 GiB of 23.00 GiB are free" in told and "weights 35." in told
    assert "would fit: --quantize int8; a smaller model, such as smollm2-135m" in told


def test_options_that_are_proposed_do_fit(tmp_path: Path, memory: Any) -> None:
    loaded = load_folder(save_sparse(tmp_path / "large", **LARGE), "large")
    memory(24, 30)
    config = EngineConfig(model=str(tmp_path / "large"), drafter=None, max_model_len=8192)
    with pytest.raises(InvalidRequest, match="--quantize int8"):
        check_fits(config, loaded)
    check_fits(EngineConfig(drafter=None, max_model_len=8192, quantize="int8"), loaded)


def test_a_kv_cache_that_is_too_large_gets_the_size_that_fits(
    memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_sparse(tmp_path / "small")
    memory(10, 16)
    assert main(["generate", "-m", str(folder), "Hi", "--kv-memory", "900GiB"]) == 2
    told = capsys.readouterr().err
    assert "KV cache 900.00 GiB" in told and told.endswith("would fit: --kv-memory 9GiB\n")
    memory(0.0005, 16)
    capsys.readouterr()
    plain = ["generate", "-m", str(folder), "Hi", "--drafter", "none"]
    assert main(plain) == 1  # a later start may go well
    assert "once other programs have freed" in capsys.readouterr().err


def test_a_context_that_is_too_long_gets_the_length_that_fits(memory: Any, tmp_path: Path) -> None:
    loaded = load_folder(save_sparse(tmp_path, max_position_embeddings=2**20), "long")
    memory(0.1, 0.1)
    asked = EngineConfig(drafter=None, max_model_len=2**20)
    with pytest.raises(InvalidRequest) as refused:
        check_fits(asked, loaded)
    length = int(refused.value.expected.split("--max-model-len ")[1].split(";")[0])
    assert 2**17 < length < 2**20
    check_fits(EngineConfig(drafter=None, max_model_len=length), loaded)


def test_between_free_and_whole_memory_others_are_asked_to_leave(
    memory: Any, tmp_path: Path
) -> None:
    loaded = load_folder(save_sparse(tmp_path, **LARGE), "large")
    memory(30, 64)
    with pytest.raises(PacelineError, match="the same once other programs have freed"):
        check_fits(EngineConfig(drafter=None), loaded)
    memory(64, 64)
    check_fits(EngineConfig(drafter=None), loaded)


def test_a_drafters_network_counts(tmp_path: Path, memory: Any) -> None:
    large = save_sparse(tmp_path / "large", **LARGE)
    loaded = load_folder(save_sparse(tmp_path / "small"), "small")
    config = EngineConfig(drafter=f"big=draft_model:{large}")
    assert needs_of(config, loaded).drafters > 35 * GIB
    memory(20, 22)
    with pytest.raises(InvalidRequest, match="--drafter none"):
        check_fits(config, loaded)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_the_bytes_of_a_network_are_known_before_it_is_built(
    tied: bool, quantize: str | None, backend: str, tmp_path: Path
) -> None:
    """With a vocabulary and layers wide enough that norms do not count."""
    shape = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    loaded = load_folder(save_tiny(tmp_path, tie_word_embeddings=tied, **shape), "tiny")
    settings: dict[str, Any] = {"dtype": "bfloat16", "device": "cpu", "quantize": quantize}
    network, _ = build_network(loaded, backend=backend, max_positions=64, **settings)
    told = network_bytes(loaded.config, positions=64, backend=backend, **settings)
    assert 0.97 < told / network.weight_bytes < 1.05
