"""The real SmolLM2 in int8: nearly as good, by the rotation, and lossless under speculation."""

from __future__ import annotations

import dataclasses

import pytest

from paceline import LLM, SamplingParams
from paceline.engine.config import EngineConfig
from paceline.engine.quality import examine, passages
from paceline.kernels import int8
from tests.engine.test_real_model import TALKS

pytestmark = pytest.mark.model


@pytest.mark.slow
def test_quality_on_the_shipped_text_and_equal_streams() -> None:
    drafters = ["auto", "self=draft_model:smollm2-135m,max_draft_len=4"]
    llm = LLM(
        "smollm2-135m", drafters, quantize="int8", max_model_len=2048, draft_policy="fixed"
    )  # fmt: skip
    quality = examine(EngineConfig(model="smollm2-135m", quantize="int8"))
    assert quality.tokens > 4000
    assert abs(quality.change) < 0.015 and quality.agreement > 0.94
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=60, seed=17, logprobs=2)
        alone = [llm.chat(talk, params, "off").choices[0] for talk in TALKS]
        for name in ("auto", "self"):
            batch = [r.choices[0] for r in llm.chat(TALKS * 2, params, {"drafter": name})]
            for got, wanted in zip(batch, alone * 2, strict=True):
                assert got.token_ids == wanted.token_ids
                assert got.logprobs == wanted.logprobs
            if name == "self":
                assert all(c.stats.acceptance_rate == 1.0 for c in batch)


@pytest.mark.slow
def test_control_without_the_rotation_it_costs_several_times_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig(model="smollm2-135m", quantize="int8", backend="torch")
    texts = [text[:6000] for text in passages()]
    rotated = examine(config, texts)
    monkeypatch.setattr(int8, "rotation_block", lambda k: 1)
    plain = examine(dataclasses.replace(config), texts)
    assert plain.change > 0.02 and plain.change > 2 * abs(rotated.change)
    assert plain.agreement < rotated.agreement - 0.03
