"""--quantize: quality is measured, said and kept; memory is counted; streams stay lossless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core import InvalidRequest
from paceline.core.cache import load_json
from paceline.engine import kept
from paceline.engine import quality as room
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.quality import Quality, passages, read, windows
from paceline.engine.runner import even_batch
from paceline.engine.startup import start_up_rows
from paceline.models.network import TorchNetwork
from tests.drafters.watched import watch
from tests.engine.test_streams import dflash_truth, expected, jobs, run
from tests.engine.tiny import EngineFactory, byte_tokenizer, save_tiny, tiny_config
from tests.models.dflash.tiny import write_drafter
from tests.random_weights import random_weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own; compiled kernels stay where they are."""
    monkeypatch.setattr(kept, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "quality"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WINDOW", 40)


def engine_of(folder: Path, **options: Any) -> Engine:
    fixed = {"drafter": None, "threads": 1, "quantize": "int8"}
    return build_engine(EngineConfig(model=str(folder), **{**fixed, **options}))


def test_quality_is_measured_once_for_a_model_and_a_recipe(
    tmp_path: Path, cache: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    folder = save_tiny(tmp_path / "model")
    first = engine_of(folder).quality
    assert first is not None and first.tokens > 200
    assert abs(first.change) < 0.1 and 0.8 < first.agreement < 1
    asked: list[int] = []
    real = room.measure
    monkeypatch.setattr(room, "measure", lambda *how: asked.append(1) or real(*how))
    assert engine_of(folder).quality == first and not asked
    # Anything else that would change the numbers asks again.
    engine_of(folder, dtype="float32")
    monkeypatch.setattr(room, "VERSION", 99)
    engine_of(folder)
    save_tiny(folder, blur=0.5)
    assert engine_of(folder).quality != first
    assert len(asked) == 3 and len(list(cache.iterdir())) == 4


def test_a_short_context_has_short_windows(tmp_path: Path) -> None:
    engine = engine_of(save_tiny(tmp_path), max_model_len=100)
    assert engine.quality is not None
    assert engine.quality.tokens == 2 * room.MOST_WINDOWS * 99


def test_a_damaged_or_unwritable_cache_only_costs_time(
    tmp_path: Path, cache: Path, quick: None
) -> None:
    (tmp_path / "model").mkdir()
    folder = save_tiny(tmp_path / "model")
    first = engine_of(folder).quality
    (file,) = cache.iterdir()
    file.write_text("{")
    assert engine_of(folder).quality == first
    assert Quality(**load_json(file)["measured"]) == first
    file.unlink()
    cache.rmdir()
    cache.write_text("a file where a folder should be")
    assert engine_of(folder).quality == first


def test_the_start_up_table_says_it(tmp_path: Path, quick: None) -> None:
    engine = engine_of(save_tiny(tmp_path))
    said = dict(start_up_rows(engine))["int8"]
    assert engine.quality is not None
    assert said == engine.quality.describe("bfloat16")
    numbers = Quality(tokens=9, perplexity=12.31, reference=12.28, agreement=0.981)
    text = "perplexity 12.31 (bf16 12.28, +0.2 %), greedy agreement 98.1 %"
    assert numbers.describe("bfloat16") == text
    assert "int8" not in dict(start_up_rows(engine_of(tmp_path, quantize=None)))


def test_without_room_for_the_reference_it_is_not_measured(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "available_memory", lambda: 0)
    engine = engine_of(save_tiny(tmp_path))
    assert engine.quality is None and not cache.exists()
    assert dict(start_up_rows(engine))["int8"].startswith("not measured")


def test_perplexity_is_what_it_is_by_hand() -> None:
    config = tiny_config()
    network = TorchNetwork(config, random_weights(config, 0))
    texts = windows(byte_tokenizer(), ["abc" * 60, "x"], 100)
    assert [len(ids) for ids in texts] == [100, 80]
    reading = read(network, texts)
    network.allocate_kv(8)
    losses = []
    for ids in texts:
        logits = network.forward(even_batch(ids)).logits
        steps = zip(logits, ids[1:], strict=False)
        losses += [-float(torch.log_softmax(row, -1)[token]) for row, token in steps]
    assert torch.allclose(reading.losses, torch.tensor(losses).double(), atol=1e-4)
    same = reading.against(reading)
    assert (same.change, same.agreement, same.tokens) == (0.0, 1.0, 178)


def test_the_shipped_text_is_prose_and_code() -> None:
    prose, code = passages()
    assert "lossless" in prose and "def " in code
    assert len(prose) > 8000 and len(code) > 8000


def test_the_memory_plan_counts_quantised_weights(tmp_path: Path, quick: None) -> None:
    folder = save_tiny(tmp_path)
    drafter = f"small=draft_model:{folder}"
    plans = {q: engine_of(folder, drafter=drafter, quantize=q).plan for q in (None, "int8")}
    plain, quantised = plans[None], plans["int8"]
    assert plain is not None and quantised is not None
    for field in ("weight_bytes", "drafter_weight_bytes"):
        assert getattr(quantised, field) < getattr(plain, field)
    mixed = engine_of(folder, drafter=f"{drafter},quantize=none").plan
    assert mixed is not None
    assert mixed.drafter_weight_bytes == plain.drafter_weight_bytes


@pytest.mark.parametrize("value", ["int4", "fp8", ""])
def test_other_numbers_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"quantize.*int8"):
        EngineConfig(quantize=value)


def quantised(make: EngineFactory) -> EngineFactory:
    def make_int8(drafter: Any = None, **options: Any) -> Engine:
        try:
            return make(drafter, quantize="int8", **options)
        except InvalidRequest as error:  # on CUDA: float32, and GPUs without fp8
            pytest.skip(str(error))

    make_int8.backend = (*make.backend, "int8")
    return make_int8


@pytest.mark.parametrize("together", [1, 8], ids=["alone", "batch-of-8"])
def test_int8_streams_equal_speculation_off(
    make_engine: EngineFactory, quick: None, together: int
) -> None:
    work, make = jobs(16), quantised(make_engine)
    engine = make("auto")
    truth = expected(make, work)
    assert run(engine, work, together=together) == truth
    assert engine.stats().speculation.accepted_tokens > 0
    assert truth != expected(make_engine, work), "int8 changed nothing: nothing was tested"


@pytest.mark.parametrize("second", [False, True], ids=["DFlash", "DFlash-2"])
def test_int8_drafters_change_no_token(
    make_engine: EngineFactory, quick: None, tmp_path: Path, second: bool
) -> None:
    work, make = jobs(8), quantised(make_engine)
    truth = expected(make, work)
    drafter = write_drafter(tmp_path / "d", layers=2, block=6, second=second)
    engine = make(f"d={drafter}")
    watch(engine, dflash_truth(truth, work), rate=0.7)
    assert run(engine, work, together=4) == truth
    assert engine.stats().speculation.accepted_tokens > 0
    small = make(f"small=draft_model:{save_tiny(tmp_path)},max_draft_len=4")
    assert run(small, work, together=4) == truth
    assert small.stats().speculation.accepted_tokens > 0
