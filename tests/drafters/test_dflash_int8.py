"""A trained DFlash drafter in int8 accepts what it accepts in bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from tests.engine.tiny import save_tiny
from tests.models.dflash.trained import TOKENS, train_tiny

PROMPTS = ["the quick brown", "once upon a", "def main(", "0123456", "lorem ipsum"]


@pytest.mark.slow
def test_acceptance_length_stays_within_two_percent(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    target = save_tiny(tmp_path / "target")
    drafter = train_tiny(tmp_path / "drafter", target, PROMPTS)
    params, lengths = SamplingParams(temperature=0, max_tokens=TOKENS), []
    for quantize in ("none", "int8"):
        llm = LLM(str(target), f"d={drafter},quantize={quantize}", draft_policy="fixed", threads=1)
        llm.generate(PROMPTS, params)
        stats = llm.engine.stats()
        lengths.append(1 + stats.speculation.accepted_tokens / stats.speculation.draft_rounds)
    plain, quantised = lengths
    assert plain > 2, "it learnt nothing: nothing was tested"
    assert quantised > 0.98 * plain, lengths
