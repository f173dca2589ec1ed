"""The real SmolLM2: in bfloat16 the same text with every drafter, alone and in a batch; in float32
the tokens of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.models.loader import load_model

pytestmark = pytest.mark.model

TEXT = "The tide went out slowly, and the boats lay down in the mud one after another."
TALKS = [
    [{"role": "user", "content": f"Repeat this twice, word for word: {TEXT}"}],
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "user", "content": f"Put every word of this on a line of its own: {TEXT}"}],
    [{"role": "user", "content": "List the first ten square numbers, one per line."}],
]
SELF = "self=draft_model:smollm2-135m,quantize=none,max_draft_len=4"
DRAFTERS = ["auto", "ngram", "suffix", SELF]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", DRAFTERS, max_model_len=2048, draft_policy="fixed")


@pytest.mark.parametrize(
    ("temperature", "tokens"),
    [
        (1.0, 32),
        pytest.param(1.0, 80, marks=pytest.mark.slow),
        pytest.param(0.0, 80, marks=pytest.mark.slow),
    ],
)
def test_text_is_the_same_with_every_drafter(llm: LLM, temperature: float, tokens: int) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=tokens, seed=17, logprobs=2)
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


@pytest.mark.slow
@torch.no_grad()
def test_200_tokens_are_those_of_transformers() -> None:
    llm = LLM("smollm2-135m", "auto", dtype="float32", max_model_len=512)
    prompt = llm.encode_chat(
        [{"role": "user", "content": "Explain why the sky is blue, in a few paragraphs."}]
    )
    params = SamplingParams(temperature=0, min_tokens=200, max_tokens=200)
    plain, drafted = (llm.generate(prompt, params, how).choices[0] for how in ("off", None))
    folder = load_model("smollm2-135m").path
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).generate(
        torch.tensor([prompt]), max_new_tokens=200, min_new_tokens=200, do_sample=False
    )
    assert plain.token_ids == theirs[0, len(prompt) :].tolist()
    assert drafted.token_ids == plain.token_ids
