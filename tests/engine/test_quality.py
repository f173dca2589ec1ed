"""--quantize: quality is measured on request and said; memory is counted; streams are lossless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core import InvalidRequest, ModelError
from paceline.core.cache import load_json
from paceline.engine import kept
from paceline.engine import quality as room
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.quality import Quality, examine, passages, read, windows
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


def ask(folder: Path, **options: Any) -> Quality:
    """What `paceline quality` measures."""
    return examine(EngineConfig(model=str(folder), **{"threads": 1, "quantize": "int8", **options}))


def test_a_start_shows_what_was_measured_and_measures_nothing(
    tmp_path: Path, cache: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    folder = save_tiny(tmp_path / "model")
    assert engine_of(folder).quality is None and not cache.exists()
    asked = ask(folder)
    assert asked.tokens > 200 and abs(asked.change) < 0.1 and 0.8 < asked.agreement < 1
    assert engine_of(folder).quality == engine_of(folder, max_model_len=100).quality == asked
    # Nothing is known of anything that would change the numbers.
    assert engine_of(folder, dtype="float32").quality is None
    with monkeypatch.context() as patch:
        patch.setattr(room, "VERSION", 99)
        assert engine_of(folder).quality is None
    assert engine_of(folder).quality == asked
    save_tiny(folder, blur=0.5)
    assert engine_of(folder).quality is None
    assert ask(folder) != asked and len(list(cache.iterdir())) == 2


def test_the_users_own_text_is_not_kept_for_starts(tmp_path: Path, cache: Path) -> None:
    folder = save_tiny(tmp_path)
    config = EngineConfig(model=str(folder), threads=1, quantize="int8")
    assert examine(config, ["abc" * 60]).tokens == 179
    assert not cache.exists() and engine_of(folder).quality is None
    with pytest.raises(InvalidRequest, match="text: got 'x'; expected at least two tokens"):
        examine(config, ["x"])


def test_a_short_context_has_short_windows(tmp_path: Path) -> None:
    assert ask(save_tiny(tmp_path)).tokens == 2 * room.MOST_WINDOWS * 511
    (tmp_path / "short").mkdir()
    short = save_tiny(tmp_path / "short", max_position_embeddings=100)
    assert ask(short).tokens == 2 * room.MOST_WINDOWS * 99


def test_a_damaged_or_unwritable_cache_only_costs_the_numbers(
    tmp_path: Path, cache: Path, quick: None
) -> None:
    (tmp_path / "model").mkdir()
    folder = save_tiny(tmp_path / "model")
    first = ask(folder)
    (file,) = cache.iterdir()
    file.write_text("{")
    assert engine_of(folder).quality is None
    assert ask(folder) == first
    assert Quality(**load_json(file)["measured"]) == first == engine_of(folder).quality
    file.unlink()
    cache.rmdir()
    cache.write_text("a file where a folder should be")
    assert ask(folder) == first and engine_of(folder).quality is None


def test_the_start_up_table_says_it(tmp_path: Path, quick: None) -> None:
    folder = save_tiny(tmp_path)
    said = dict(start_up_rows(engine_of(folder)))["int8"]
    assert said == f"`paceline quality {folder}` measures what it costs"
    said = dict(start_up_rows(engine_of(folder, dtype="float32")))["int8"]
    assert f"`paceline quality {folder} --dtype float32`" in said
    asked = ask(folder)
    said = dict(start_up_rows(engine_of(folder)))["int8"]
    assert said == asked.describe("bfloat16")
    numbers = Quality(tokens=9, perplexity=12.31, reference=12.28, agreement=0.981)
    text = "perplexity 12.31 (bf16 12.28, +0.2 %), greedy agreement 98.1 %"
    assert numbers.describe("bfloat16") == text
    assert "int8" not in dict(start_up_rows(engine_of(tmp_path, quantize=None)))


def test_a_model_too_large_to_compare_is_refused_by_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_memory", lambda device: 1000)
    with pytest.raises(ModelError, match=r"cannot be measured here: unquantised it needs .* free"):
        ask(save_tiny(tmp_path))
    assert not cache.exists()


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


def test_the_memory_plan_counts_quantised_weights(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    drafter = f"small=draft_model:{folder},quantize="
    plans = {
        q: engine_of(folder, drafter=drafter + (q or "none"), quantize=q).plan
        for q in (None, "int8")
    }
    plain, quantised = plans[None], plans["int8"]
    assert plain is not None and quantised is not None
    for field in ("weight_bytes", "drafter_weight_bytes"):
        assert getattr(quantised, field) < getattr(plain, field)
    mixed = engine_of(folder, drafter=f"{drafter}none").plan
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
def test_int8_streams_equal_speculation_off(make_engine: EngineFactory, together: int) -> None:
    work, make = jobs(16), quantised(make_engine)
    engine = make("auto")
    truth = expected(make, work)
    assert run(engine, work, together=together) == truth
    assert engine.stats().speculation.accepted_tokens > 0
    assert truth != expected(make_engine, work), "int8 changed nothing: nothing was tested"


@pytest.mark.parametrize("second", [False, True], ids=["DFlash", "DFlash-2"])
def test_int8_drafters_change_no_token(
    make_engine: EngineFactory, tmp_path: Path, second: bool
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
