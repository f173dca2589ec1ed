"""A drafter's layers are int8 where that takes less time, and the text stays the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.drafters.base import Networked
from paceline.engine import build
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.startup import start_up_rows
from paceline.models import quantized
from paceline.models.native_network import native_available
from tests.engine.tiny import save_tiny
from tests.models.dflash.tiny import write_drafter

PROMPTS = ["the quick brown", "once upon a", "def main("]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(params=["draft_model", "dflash", "hybrid"])
def drafter(request: pytest.FixtureRequest, target: Path, tmp_path: Path) -> str:
    if request.param == "draft_model":
        return f"d=draft_model:{target}"
    return f"d={request.param}:{write_drafter(tmp_path / 'drafter')}"


def engine_of(target: Path, drafter: str, **options: object) -> Engine:
    return build.build_engine(
        EngineConfig(model=str(target), drafter=drafter, threads=1, **options)
    )


def number(engine: Engine) -> str:
    drafter = engine.drafters["d"]
    assert isinstance(drafter, Networked) and drafter.network is not None
    return drafter.network.number


@pytest.fixture
def usual() -> str:
    """Return what layers of drafters are quantised to on the kernels that run here."""
    runs, path = native_available()
    if not runs:
        pytest.skip(path)
    return "int8" if path in quantized.INT8_PATHS else ""


def test_layers_are_int8_unless_somebody_says_otherwise(
    target: Path, drafter: str, usual: str
) -> None:
    engine = engine_of(target, drafter)
    assert number(engine) == usual
    rows = dict(start_up_rows(engine))
    assert ("layers of d" in rows) == bool(usual)
    assert not usual or rows["layers of d"].startswith("int8: ")
    plain = engine_of(target, f"{drafter},quantize=none")
    assert number(plain) == ""
    assert "layers of d" not in dict(start_up_rows(plain))
    small, large = engine.plan.drafter_weight_bytes, plain.plan.drafter_weight_bytes
    assert small < large if usual else small == large
    asked = engine_of(target, f"{drafter},quantize=int8")
    assert number(asked) == "int8"


def test_elsewhere_they_are_as_the_targets(target: Path, drafter: str) -> None:
    assert number(engine_of(target, drafter, backend="torch")) == ""
    assert number(engine_of(target, drafter, dtype="float32")) == ""
    assert number(engine_of(target, drafter, backend="torch", quantize="int8")) == "int8"


def test_a_target_in_int8_has_drafters_in_int8(target: Path, drafter: str, usual: str) -> None:
    engine = engine_of(target, drafter, quantize="int8")
    assert number(engine) == "int8"
    assert "layers of d" not in dict(start_up_rows(engine)), "the target's row says it"


def test_costs_of_other_layers_are_not_taken_for_theirs(
    target: Path, drafter: str, usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model=str(target), drafter=drafter, threads=1)
    identity = build._identity(config, build.load_parts(config))
    assert build._identity(config, build.load_parts(config)) == identity
    monkeypatch.setattr(quantized, "INT8_PATHS", ())
    assert (build._identity(config, build.load_parts(config)) == identity) == (usual == "")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["match", "token"])
def test_the_text_is_that_without_drafts(
    target: Path, drafter: str, temperature: float, rule: str
) -> None:
    if rule == "token" and temperature:
        pytest.skip("the same distribution, not the same text")
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=24, ignore_eos=True)
    llm = LLM(str(target), drafter, rule=rule, draft_policy="fixed", threads=1)
    plain = [llm.generate(prompt, params, "off").choices[0].token_ids for prompt in PROMPTS]
    drafted = [answer.choices[0].token_ids for answer in llm.generate(PROMPTS, params)]
    assert drafted == plain
    assert llm.engine.stats().speculation.draft_tokens > 0
