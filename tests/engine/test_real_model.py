"""The real SmolLM2 in bfloat16: the same text with every drafter, alone and in a batch."""

from __future__ import annotations

import pytest

from paceline import LLM, SamplingParams

pytestmark = pytest.mark.model

TEXT = "The tide went out slowly, and the boats lay down in the mud one after another."
TALKS = [
    [{"role": "user", "content": f"Repeat this twice, word for word: {TEXT}"}],
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "user", "content": f"Put every word of this on a line of its own: {TEXT}"}],
    [{"role": "user", "content": "List the first ten square numbers, one per line."}],
]
DRAFTERS = ["auto", "ngram", "suffix", "self=draft_model:smollm2-135m,max_draft_len=4"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", DRAFTERS, max_model_len=2048, draft_policy="fixed")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_the_same_with_every_drafter(llm: LLM, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=80, seed=17, logprobs=2)
    alone = [llm.chat(talk, params, "off").choices[0] for talk in TALKS]
    for name in ("auto", "ngram", "suffix", "self"):
        batch = [r.choices[0] for r in llm.chat(TALKS * 2, params, {"drafter": name})]
        for got, wanted in zip(batch, alone * 2, strict=True):
            assert got.token_ids == wanted.token_ids
            assert (got.text, got.finish_reason) == (wanted.text, wanted.finish_reason)
            assert got.logprobs == wanted.logprobs
        if temperature == 0:
            assert sum(c.stats.accepted_tokens for c in batch) > 0
        if name == "self":  # the target drafts for itself with its own noise: nothing is rejected
            assert all(c.stats.acceptance_rate == 1.0 for c in batch)
