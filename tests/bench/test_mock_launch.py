"""The lines that mock acceptance on vLLM and SGLang, word for word."""

from __future__ import annotations

import json
import shlex

import pytest

from paceline.bench.mock import Asked, Plan
from paceline.bench.mock_launch import Drafter, launch_lines
from paceline.core import InvalidRequest
from paceline.roofline.acceptance import Profile

DFLASH = Drafter("dflash", "z-lab/Qwen3-8B-DFlash-b16")
PLAN = Plan(
    (Asked(profile=Profile.of_conditional([0.8, 0.5])),),
    draft_lengths=(2,),
    batches=(1, 8),
    context=512,
)
VLLM = """\
# Mocked acceptance: for speed alone. The output is NOT the model's and means nothing.
# Start one server at a time, and measure it with the lines at the end.
# The block of z-lab/Qwen3-8B-DFlash-b16 was not looked up: drafts must not be longer than it \
(here 2 tokens at most,
# which asks for a block_size of 3 or more in the drafter's config.json).

# AR: speculation off, what the others are compared with
vllm serve Qwen/Qwen3-8B --load-format dummy --dtype bfloat16

# AL 2.2 incl. bonus, drafts of 2 tokens
vllm serve Qwen/Qwen3-8B --speculative-config '{"method": "dflash", \
"model": "z-lab/Qwen3-8B-DFlash-b16", "num_speculative_tokens": 2, \
"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.4]}' \
--load-format dummy --dtype bfloat16

# measure, at each batch
vllm bench serve --model Qwen/Qwen3-8B --dataset-name random --random-input-len 384 \
--random-output-len 256 --ignore-eos --num-prompts 8 --max-concurrency 1 --save-result \
--result-filename mock-batch-1.json
vllm bench serve --model Qwen/Qwen3-8B --dataset-name random --random-input-len 384 \
--random-output-len 256 --ignore-eos --num-prompts 64 --max-concurrency 8 --save-result \
--result-filename mock-batch-8.json"""
SGLANG = """\
# Mocked acceptance: for speed alone. The output is NOT the model's and means nothing.
# Start one server at a time, and measure it with the lines at the end.

# AR: speculation off, what the others are compared with
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp-size 2 --load-format dummy \
--dtype bfloat16

# AL 2.2 incl. bonus, drafts of 2 tokens
SGLANG_SIMULATE_ACC_LEN=2.2 SGLANG_SIMULATE_ACC_METHOD=match-expected \
SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token python -m sglang.launch_server --model-path \
Qwen/Qwen3-8B --tp-size 2 --speculative-algorithm EAGLE3 --speculative-draft-model-path ./eagle \
--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 \
--load-format dummy --dtype bfloat16

# measure, at each batch
python -m sglang.bench_serving --backend sglang --model Qwen/Qwen3-8B --dataset-name random-ids \
--random-range-ratio 1 --random-input-len 384 --random-output-len 256 --num-prompts 8 \
--max-concurrency 1 --output-file mock-batch-1.jsonl
python -m sglang.bench_serving --backend sglang --model Qwen/Qwen3-8B --dataset-name random-ids \
--random-range-ratio 1 --random-input-len 384 --random-output-len 256 --num-prompts 64 \
--max-concurrency 8 --output-file mock-batch-8.jsonl"""


def test_vllm() -> None:
    assert "\n".join(launch_lines("vllm", PLAN, "Qwen/Qwen3-8B", DFLASH)) == VLLM


def test_sglang() -> None:
    eagle = Drafter("eagle3", "./eagle")
    lines = launch_lines("sglang", PLAN, "Qwen/Qwen3-8B", eagle, tensor_parallel=2)
    assert "\n".join(lines) == SGLANG


@pytest.mark.parametrize("length", [1.0, 2.6, 4.0])
def test_vllm_draws_from_the_law_that_we_draw_from(length: float) -> None:
    """Its rates are unconditional: they sum to the accepted tokens, never rise, and are as many as
    drafted ones. vLLM refuses others."""
    plan = Plan((Asked(acceptance_length=length),), draft_lengths=(3,))
    (line,) = [x for x in launch_lines("vllm", plan, "m", Drafter("mtp")) if "speculative" in x]
    words = shlex.split(line)
    config = json.loads(words[words.index("--speculative-config") + 1])
    rates = config["synthetic_acceptance_rates"]
    assert len(rates) == config["num_speculative_tokens"] == 3
    assert rates == sorted(rates, reverse=True)
    assert all(0 <= rate <= 1 for rate in rates)
    assert 1 + sum(rates) == pytest.approx(length, abs=1e-5)


def test_a_dflash_drafters_longest_draft_comes_with_the_block_that_it_asks_for() -> None:
    plan = Plan((Asked(acceptance_length=4.0),), draft_lengths=(7, 31))
    said = "\n".join(launch_lines("vllm", plan, "m", DFLASH))
    assert "# The block of z-lab/Qwen3-8B-DFlash-b16 was not looked up" in said
    assert "block_size of 32 or more" in said
    for other in (Drafter("mtp"), Drafter("eagle3", "./eagle")):  # may draft as long as they like
        assert "block" not in "\n".join(launch_lines("vllm", plan, "m", other))


def test_a_server_is_started_once_for_all_batches() -> None:
    plan = Plan((Asked(acceptance_length=2.0),), draft_lengths=(3, 7), batches=(1, 4, 16))
    lines = launch_lines("sglang", plan, "m", Drafter("mtp"))
    assert sum("SGLANG_SIMULATE_ACC_LEN=2 " in line for line in lines) == 2
    assert sum("bench_serving" in line for line in lines) == 3


@pytest.mark.parametrize("text", ["", "eagle3:"])
def test_a_drafter_without_its_parts_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"drafter: got .*(KIND|a value after 'eagle3')"):
        Drafter.parse(text)


@pytest.mark.parametrize(
    "text", ["ngram", "suffix", "dflash", "mtp:x", "fast:x", "a=mtp", "mtp,k=1"]
)
def test_drafters_that_do_not_draft_whole_drafts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"drafter: got .*mtp, eagle3:CHECKPOINT"):
        Drafter.parse(text)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"launch.*vllm, sglang"):
        launch_lines("tgi", PLAN, "m", DFLASH)
