"""Launch lines: what each engine calls a way of drafting, and which it has not."""

from __future__ import annotations

import json
import shlex

import pytest

from paceline.cli import build_parser
from paceline.models.families import ARCHITECTURES
from paceline.roofline.cost import Options
from paceline.roofline.scenario import KINDS, launch_flags
from paceline.roofline.scenario.kinds import SERVED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [0, 5])
def test_our_own_line_would_be_accepted_by_our_own_command(kind: str, length: int) -> None:
    line = launch_flags(kind, length, model="./my model", family="qwen2")["paceline"]
    if line is not None:
        words = shlex.split(line)
        assert words[:3] == ["paceline", "serve", "./my model"]
        build_parser().parse_args(words[1:])


def test_a_block_counts_its_anchor_where_the_engine_does() -> None:
    lines = launch_flags("dflash", 15, model="org/model", family="qwen3", drafter="org/drafter")
    assert lines["paceline"] == (
        "paceline serve org/model --drafter dflash:org/drafter,max_draft_len=15"
    )
    words = shlex.split(lines["vllm"] or "")
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {"method": "dflash", "model": "org/drafter", "num_speculative_tokens": 15}
    assert "--speculative-num-draft-tokens 16" in (lines["sglang"] or "")


def test_autoregressive_drafters_state_their_steps_to_sglang() -> None:
    line = launch_flags("eagle3", 4, model="m", family="llama")["sglang"] or ""
    assert "--speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFTER" in line
    assert "--speculative-num-steps 4 --speculative-eagle-topk 1" in line
    assert "--speculative-num-draft-tokens 5" in line


def test_engines_that_lack_it_get_no_line() -> None:
    assert launch_flags("mtp", 3, model="m", family="qwen3")["paceline"] is None
    assert launch_flags("suffix", 3, model="m", family="qwen3")["sglang"] is None
    assert set(launch_flags("ideal", 3, model="m", family="qwen3").values()) == {None}
    assert launch_flags("dflash", 3, model="m", family="deepseek_v4")["paceline"] is None
    several = launch_flags(
        "dflash", 3, model="m", family="qwen3", options=Options(tensor_parallel=8)
    )
    assert several["paceline"] is None
    assert "--tensor-parallel-size 8" in (several["vllm"] or "")
    assert "--tp-size 8" in (several["sglang"] or "")


def test_without_drafts_the_lines_serve_without_speculation() -> None:
    lines = launch_flags("dflash", 0, model="m", family="qwen3")
    assert lines["paceline"] == "paceline serve m --drafter none"
    assert lines["vllm"] == "vllm serve m"


def test_the_families_that_we_serve_are_those_of_the_engine() -> None:
    classes = sorted(f"{name.replace('_', '')}forcausallm" for name in SERVED)
    assert classes == sorted(map(str.lower, ARCHITECTURES))


def test_groups_of_devices_are_said_as_each_engine_says_them() -> None:
    options = Options(tensor_parallel=2, data_parallel=4, expert_parallel=8)
    lines = launch_flags("mtp", 3, model="m", family="deepseek_v3", options=options, experts=True)
    assert lines["paceline"] is None
    assert "--tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel" in str(
        lines["vllm"]
    )
    assert "--tp-size 8 --dp-size 4 --enable-dp-attention --ep-size 8" in str(lines["sglang"])


def test_replicas_of_a_dense_model_and_experts_among_some_of_the_devices() -> None:
    replicas = launch_flags("mtp", 3, model="m", family="qwen3", options=Options(data_parallel=4))
    assert replicas["paceline"] is None
    assert "--data-parallel-size 4" in (replicas["vllm"] or "")
    assert "m --dp-size 4 --spec" in (replicas["sglang"] or "")
    some = Options(tensor_parallel=8, expert_parallel=4)
    lines = launch_flags("mtp", 3, model="m", family="x", options=some, experts=True)
    assert lines["vllm"] is None  # it deals them to all devices, or to none
    assert "--tp-size 8 --ep-size 4" in (lines["sglang"] or "")
