"""Whole generations against the authors' own loop: the same drafts, the same tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash.model import dflash_generate, extract_context_feature
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from paceline.core import Request, SamplingParams
from paceline.drafters.reference import Recorder
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.models.config import ModelConfig
from paceline.models.tensors import HEAD
from tests.engine.tiny import tiny_config, tiny_model
from tests.models.dflash.tiny import authors_model, write_drafter
from tests.random_weights import random_weights

NEW, TARGET_LAYERS, HEAD_SCALE = 40, 4, 20
PROMPTS = [list(range(60, 95)), list(range(20, 31)), [7, 9] * 30]
SHAPES = [
    {"layers": 1, "block": 4},
    {"layers": 2, "block": 16},
    {"layers": 3, "block": 8, "sliding": "ssf", "window": 12},
    {"layers": 6, "block": 7, "taps": (1,)},
    {"layers": 2, "block": 6, "sliding": "ss", "window": 9, "is_causal": False},
    {"layers": 1, "block": 6, "second": True},
    {"layers": 3, "block": 8, "second": True, "sliding": "sfs", "window": 11},
    {"layers": 5, "block": 16, "second": True, "sliding": "sssss", "window": 20,
     "is_causal": False},
]  # fmt: skip


def talkative() -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """A tiny target that says few different words, so that random drafters are sometimes right."""
    config = tiny_config(tie_word_embeddings=False, num_layers=TARGET_LAYERS)
    weights = random_weights(config, 0)
    weights[HEAD][:2] *= HEAD_SCALE
    return config, weights


def authors_target(config: ModelConfig, weights: dict[str, torch.Tensor]) -> Any:
    hf = Qwen2Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope.theta,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(hf)
    model.load_state_dict(weights)
    return model.float().eval()


def our_engine(folder: Path, config: ModelConfig, weights: dict[str, torch.Tensor]) -> Engine:
    loaded = replace(tiny_model("float32"), config=config, weights=dict(weights))
    options = {"backend": "torch", "dtype": "float32", "threads": 1, "draft_policy": "fixed"}
    return build_engine(EngineConfig(model="tiny", drafter=f"d={folder}", **options), loaded)


def our_rounds(
    engine: Engine, prompt: list[int], params: SamplingParams
) -> tuple[Request, list[list[int]]]:
    """The request, finished, and what was verified in each round: the anchor and its draft."""
    (request,) = engine.make_requests(prompt, params, request_id="ours")
    engine.add([request])
    rounds: list[list[int]] = []
    drafter = engine.drafters["d"]
    propose = type(drafter).propose

    def recorded(requests, lengths):
        drafts = propose(drafter, requests, lengths)
        rounds.append([requests[0].tokens[-1], *drafts.tokens[0]])
        return drafts

    drafter.propose = recorded
    while engine.has_work:
        engine.step()
    return request, rounds


def their_rounds(drafter: Any, target: Any, prompt: list[int]) -> tuple[list[int], list[list[int]]]:
    rounds: list[list[int]] = []

    def record(module, args, kwargs):
        ids = args[0] if args else kwargs["input_ids"]
        rounds.append(ids[0].tolist())

    hook = target.register_forward_pre_hook(record, with_kwargs=True)
    out = dflash_generate(drafter, target, torch.tensor([prompt]), NEW, None)
    hook.remove()
    return out[0, len(prompt) :].tolist(), rounds[1:]  # without the prompt's


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_greedy_generations_draft_and_emit_the_authors_tokens(shape, tmp_path):
    shape = {"taps": (0, 2), "target_layers": TARGET_LAYERS} | shape
    folder = write_drafter(tmp_path / "drafter", **shape)
    config, weights = talkative()
    drafter, target = authors_model(folder), authors_target(config, weights)
    engine = our_engine(folder, config, weights)
    # Near its end their loop verifies one token more than can be committed: leave those out.
    params = SamplingParams(temperature=0, max_tokens=NEW + 1, ignore_eos=True)
    accepted = 0
    for prompt in PROMPTS:
        tokens, theirs = their_rounds(drafter, target, prompt)
        before = engine.stats().speculation.accepted_tokens
        request, ours = our_rounds(engine, prompt, params)
        assert request.output_ids[:NEW] == tokens
        whole = [block for block in theirs if len(block) == shape["block"]]
        assert len(whole) >= 4
        assert ours[: len(whole)] == whole
        accepted += engine.stats().speculation.accepted_tokens - before
    assert accepted >= 5, "next to nothing was accepted: little was tested"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_draft_logits_of_a_sampled_stream_are_the_authors(shape, tmp_path):
    """At T = 1 draws differ, so their model is led along our stream, with its own cache, round by
    round as their loop does it."""
    shape = {"taps": (0, 2), "target_layers": TARGET_LAYERS} | shape
    folder = write_drafter(tmp_path / "drafter", **shape)
    config, weights = talkative()
    engine = our_engine(folder, config, weights)
    recorder = Recorder(engine.drafters["d"])
    engine.drafters["d"] = recorder
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=60, ignore_eos=True)
    (request,) = engine.make_requests(PROMPTS[0], params, request_id="sampled")
    engine.add([request])
    while engine.has_work:
        engine.step()
    assert engine.stats().speculation.accepted_tokens >= 2, (
        "every round began one token on: little was tested"
    )

    drafter, target = authors_model(folder), authors_target(config, weights)
    ids = torch.tensor([request.tokens])
    states = target(ids, output_hidden_states=True).hidden_states
    features = extract_context_feature(states, list(engine.drafters["d"].feature_layers))
    cache, seen = DynamicCache(config=drafter.config), 0
    cache.activate_past_recording()
    for draft in recorder.drafts:
        anchor, count = len(draft.tokens) - 1, len(draft.logits)
        block = torch.tensor([[draft.tokens[-1]] + [drafter.mask_token_id] * count])
        hidden = drafter(
            target_hidden=features[:, seen:anchor],
            noise_embedding=target.get_input_embeddings()(block),
            position_ids=torch.arange(seen, anchor + count + 1)[None],
            past_key_values=cache,
            use_cache=True,
        )
        cache.crop(anchor - cache.get_seq_length())
        seen = anchor
        logits = drafter.compute_logits(hidden[:, 1:], target.lm_head)[0]
        torch.testing.assert_close(draft.logits, logits, rtol=1e-4, atol=1e-4)
    assert len(recorder.drafts) >= 15
