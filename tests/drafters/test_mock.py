"""The mock drafter: arbitrary tokens, and a cost that is really spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.steps.groups import Steady
from paceline.core import InvalidRequest, ModelError, SpeculativeParams
from paceline.drafters.dflash import DFlashDrafter
from paceline.drafters.draft_model import DraftModelDrafter
from paceline.drafters.mock import MockDrafter
from paceline.drafters.spec import build, parse_spec
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.models.batch import ForwardBatch
from tests.bench.mocks import TINY_DFLASH, config_file
from tests.engine.tiny import hf_json, tiny_config, tiny_model

PROMPTS = [list(range(10 + i, 40 + i)) for i in range(2)]
FIXED = SpeculativeParams(policy="fixed")


def make_engine(spec: str, dtype: str = "float32", **options: Any) -> Engine:
    settings = {"rule": "synthetic", "synthetic": (1.0,), "kv_memory": 2**22, "threads": 1}
    config = EngineConfig(model="tiny", drafter=spec, dtype=dtype, **(settings | options))
    return build_engine(config, tiny_model(dtype, num_layers=4, head_dim=32))


def forwards(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(layers, rows) of every forward from now on."""
    seen: list[tuple[int, int]] = []
    kind = type(engine.runner.network)
    work = kind.forward

    def watched(self: Any, batch: ForwardBatch, taps: tuple[int, ...] = ()) -> Any:
        seen.append((self.num_layers, len(batch.ids)))
        return work(self, batch, taps)

    monkeypatch.setattr(kind, "forward", watched)
    return seen


@pytest.mark.parametrize(
    ("spec", "passes"),
    [
        ("mock,max_draft_len=6", 0),
        ("mock,cost=0.5,max_draft_len=6", 6),
        ("mock,cost=0.5,block=4,max_draft_len=6", 2),
        ("mock,cost=0.5,block=6,max_draft_len=6", 1),
    ],
)
def test_a_draft_spends_the_passes_that_it_says(
    spec: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(spec)
    steady = Steady(engine)
    group = steady.begin(PROMPTS, FIXED)
    (drafter,) = engine.drafters.values()
    seen = forwards(engine, monkeypatch)
    assert steady.step(group).committed == (7, 7)
    *drafting, verify = seen
    assert verify == (4, 2 * 7)
    assert len(drafting) == passes
    if passes:
        assert isinstance(drafter, MockDrafter) and drafter.share is not None
        assert set(drafting) == {(drafter.share.layers, 2)}  # a row of each request
    steady.end(group)
    engine.check_integrity()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_it_spends_changes_no_text(dtype: str) -> None:
    """Its passes write KV into the slots of the draft; the target's must not suffer from it."""
    said = []
    for spec in ("mock,max_draft_len=4", "mock,cost=0.6,max_draft_len=4"):
        engine = make_engine(spec, dtype, rule="match", synthetic=())
        steady = Steady(engine)
        group = steady.begin(PROMPTS, FIXED)
        for _ in range(8):
            steady.step(group)
        said.append([request.output_ids[:9] for request in group.requests])
        steady.end(group)
    assert said[0] == said[1]


def test_drafts_are_of_the_vocabulary_and_hang_on_nobody_else() -> None:
    engine = make_engine("mock,max_draft_len=12")
    (drafter,) = engine.drafters.values()
    requests = engine.make_requests([1, 2, 3], request_id="a", params=_params(7))
    requests += engine.make_requests([1, 2, 3], request_id="b", params=_params(8))
    together = drafter.propose(requests, [12, 5]).tokens
    assert [len(draft) for draft in together] == [12, 5]
    assert all(0 <= token < engine.vocab_size for draft in together for token in draft)
    assert drafter.propose(requests[1:], [5]).tokens == together[1:]
    assert together[0][:5] != together[1]


def _params(seed: int) -> Any:
    from paceline.core import SamplingParams

    return SamplingParams(seed=seed)


def test_a_dflash_drafter_of_random_weights_drafts_whole_blocks(tmp_path: Path) -> None:
    path = config_file(tmp_path, TINY_DFLASH, num_target_layers=4)
    engine = make_engine(f"mock:{path}", "bfloat16")
    (drafter,) = engine.drafters.values()
    assert isinstance(drafter, DFlashDrafter)
    assert drafter.version.startswith("mock-")
    steady = Steady(engine)
    group = steady.begin(PROMPTS, FIXED)
    step = steady.step(group)
    assert step.committed == (8, 8)
    assert step.drafting > 0
    steady.end(group)


def test_a_small_model_of_random_weights_drafts_to_the_end(tmp_path: Path) -> None:
    hf = {**hf_json(tiny_config(num_layers=1, head_dim=32), 3), "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(hf), "utf-8")
    engine = make_engine(f"mock:{tmp_path},max_draft_len=5", "bfloat16")
    (drafter,) = engine.drafters.values()
    assert isinstance(drafter, DraftModelDrafter)
    steady = Steady(engine)
    group = steady.begin(PROMPTS, FIXED)
    assert steady.step(group).committed == (6, 6)  # no confidence is too low
    steady.end(group)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mock,cost=1.5", "cost.*from 0 to 1"),
        ("mock,cost=-0.1", "cost.*from 0 to 1"),
        ("mock,block=4", "block.*a cost beside it"),
        ("mock,block=0,cost=0.1", "block.*from 1"),
        ("mock,speed=2", "speed.*one of cost, block, max_draft_len"),
        ("mock:nowhere.json", "nowhere.json.*a config.json"),
    ],
)
def test_bad_specs_are_refused_by_name(spec: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        build(parse_spec(spec))


def test_a_drafter_for_another_target_is_refused(tmp_path: Path) -> None:
    path = config_file(tmp_path, TINY_DFLASH, hidden_size=128)
    with pytest.raises(ModelError, match="hidden_size is 128; expected 64"):
        make_engine(f"mock:{path}", "bfloat16")
