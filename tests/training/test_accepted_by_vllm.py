"""A drafter for a target that Paceline does not serve, taught and accepted by vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.dataset.loops import loop_start
from paceline.dataset.run_log import read_log
from paceline.dataset.training_set import Manifest, TrainingRow, write_manifest, write_shard
from paceline.models.any_target import read_target
from paceline.models.loader import identity
from paceline.training.config import TrainConfig
from tests.engine.tiny import VOCAB
from tests.training import foreign
from tests.training.foreign import save_foreign
from tests.training.runs import config, drafter_of

BLOCK, PROMPTS, TOKENS = 6, 24, 32
# vLLM (0.32) keeps layers with full attention in groups and wants a drafter's in one of them. They
# are one group where they are fewer than those with a window, or less than half as many more.
WINDOWS: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "num_hidden_layers": 10, "layer_types": ["sliding_attention", "full_attention"] * 5,
    },
    "gemma4": {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
}  # fmt: skip
# vLLM's Python runs it: a folder with a target, a file for the answers, and maybe a drafter.
ANSWER = f"""
import json, sys
from vllm import LLM, SamplingParams
target, out, dtype, *drafter = sys.argv[1:]
extra = {{}}
if drafter:
    extra["speculative_config"] = {{
        "method": "dflash", "model": drafter[0], "num_speculative_tokens": {BLOCK - 1}}}
llm = LLM(target, dtype=dtype, enforce_eager=True, max_model_len=128,
          enable_prefix_caching=False, disable_log_stats=False, **extra)
prompts = [{{"prompt_token_ids": [4 + (7 * i + j * j) % 230 for j in range(8)]}}
           for i in range({PROMPTS})]
greedy = SamplingParams(temperature=0, max_tokens={TOKENS}, ignore_eos=True)
done = llm.generate(prompts, greedy)
counts = {{metric.name: metric.value for metric in llm.get_metrics()
          if "spec_decode" in metric.name and hasattr(metric, "value")}}
answers = [[list(each.prompt_token_ids), list(each.outputs[0].token_ids)] for each in done]
with open(out, "w") as file:
    json.dump({{"answers": answers, "counts": counts}}, file)
"""


# torchvision's compiled operators are for CUDA; vLLM imports it for Qwen3.5 and needs none of them.
WITHOUT_OPERATORS = """
import sys, types
name = "torchvision._meta_registrations"
sys.modules[name] = types.ModuleType(name)
"""


class Answered(NamedTuple):
    """Prompts with their answers, and the mean acceptance length incl. bonus."""

    answers: list[list[list[int]]]
    length: float


def answered_by_vllm(target: Path, out: Path, dtype: str, *drafter: str) -> Answered:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    python = os.environ["PACELINE_VLLM_PYTHON"]
    command = [python, "-c", ANSWER, str(target), str(out), dtype, *drafter]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(out.read_text())
    drafts = told["counts"].get("vllm:spec_decode_num_drafts", 0)
    accepted = told["counts"].get("vllm:spec_decode_num_accepted_tokens", 0)
    return Answered(told["answers"], 1 + accepted / drafts if drafts else 1.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif("PACELINE_VLLM_PYTHON" not in os.environ, reason="needs PACELINE_VLLM_PYTHON")
@pytest.mark.parametrize("family", ["qwen3_moe", "mistral", "phi3", "gpt_oss", "gemma4"])
def test_vllm_accepts_what_a_drafter_knows_by_heart(family, tmp_path, monkeypatch):
    """Our engine serves Mistral as well, and vLLM computes it here all the same."""
    architecture, config_name, special = foreign.FAMILIES[family]
    special = special | WINDOWS.get(family, {})
    monkeypatch.setitem(foreign.FAMILIES, family, (architecture, config_name, special))
    target, plain = told_by_vllm(tmp_path, monkeypatch, family, "float32")
    drafter = drafter_of(by_heart(tmp_path, target, plain, "float32"))
    drafted = answered_by_vllm(target, tmp_path / "drafted.json", "float32", str(drafter))
    print(f"AL {drafted.length:.2f} of {BLOCK}", file=sys.stderr)
    assert drafted.answers == plain.answers
    assert drafted.length > 0.8 * BLOCK


@pytest.mark.slow
@pytest.mark.skipif("PACELINE_VLLM_PYTHON" not in os.environ, reason="needs PACELINE_VLLM_PYTHON")
@pytest.mark.skipif("VLLM_TORCHVISION" not in os.environ, reason="needs a folder with torchvision")
def test_a_drafter_of_qwen3_5_learns_by_heart_what_vllm_shows_of_it(tmp_path, monkeypatch):
    """VLLM_TORCHVISION is a folder of `pip install --no-deps --target`. On a CPU vLLM computes the
    linear attention in bfloat16 alone, and (0.32) does not verify drafts there: with its own
    look-ups it fails, and with drafts of others its text changes."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_OPERATORS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['VLLM_TORCHVISION']}")
    architecture, config_name, special = foreign.FAMILIES["qwen3_5"]
    heads = {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4}
    family = (architecture, config_name, special | heads)
    monkeypatch.setitem(foreign.FAMILIES, "qwen3_5", family)
    target, plain = told_by_vllm(tmp_path, monkeypatch, "qwen3_5", "bfloat16")
    drafter_of(by_heart(tmp_path, target, plain, "bfloat16"))
    al = [row["held_out/set/al"] for row in read_log(tmp_path / "run") if "held_out/set/al" in row]
    assert al[0] < 2 and al[-1] == BLOCK


def told_by_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, dtype: str
) -> tuple[Path, Answered]:
    """Return a tiny target, and what vLLM answers with it."""
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
             "intermediate_size": 256, "initializer_range": 0.2}  # fmt: skip
    monkeypatch.setattr(foreign, "BASE", foreign.BASE | sizes)
    target = save_foreign(tmp_path / "target", family)
    return target, answered_by_vllm(target, tmp_path / "plain.json", dtype)


def by_heart(tmp_path: Path, target: Path, plain: Answered, dtype: str) -> TrainConfig:
    """Return the settings of a run that learns vLLM's answers from the features that it shows."""
    rows = [
        TrainingRow(
            (*prompt, *answer), ((len(prompt), len(prompt) + len(answer)),), f"v#{number}",
            "on_task", "en", "length", 0.0, 0, f"{number}",
        )
        for number, (prompt, answer) in enumerate(plain.answers)
    ]  # fmt: skip
    assert sum(loop_start(row.ids[8:]) is None for row in rows) > PROMPTS // 2
    folder = tmp_path / "set"
    folder.mkdir()
    shards = [write_shard(folder, part, 0, rows) for part in ("train", "held_out")]
    app = {"description": {"name": "answers of vLLM"}, "sources": []}
    manifest = Manifest(target=identity(read_target(str(target))), app=app, shards=shards)
    write_manifest(folder, manifest)
    unused = max(set(range(VOCAB)) - {token for row in rows for token in row.ids})
    return config(
        target, folder, tmp_path / "run", steps=600, texts=8, micro=8, anchors=40,
        weights="uniform", head_tokens=0, threads=None, eval_every=200,
        target_engine="vllm", dtype=dtype, mask_token=unused,
    )  # fmt: skip
